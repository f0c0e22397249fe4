"""Public recordings of many instrumentations: each span is taken or refused, with a reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from serve.otel.kinds import Kind
from serve.otel.reading import CALLS, Reading, read
from serve.otel.spans import Refused, Span
from tests.serve.otel.made import AT_US, call, reading, spans_of

TELEMETRY = Path(__file__).parents[4] / "shared" / "data" / "telemetry"
pytestmark = pytest.mark.skipif(not TELEMETRY.exists(), reason=f"{TELEMETRY} is not here")

# Line of otlp_payloads.jsonl: what its calls used.
USED = {
    10: [{"input_uncached": 123, "output_text": 456}],
    15: [
        {
            "input_uncached": 77,
            "cache_read": 30,
            "cache_write_5m": 10,
            "audio_in": 3,
            "audio_out": 7,
            "output_text": 33,
        }
    ],
    16: [{"input_uncached": 5000, "cache_read": 40000, "cache_write_5m": 5000, "output_text": 200}],
    53: [{"input_uncached": 100, "output_reasoning": 30, "audio_out": 5, "output_text": 15}],
    55: [{"input_uncached": 70, "cache_read": 20, "cache_write_5m": 10, "output_text": 40}],
    56: [{"input_uncached": 100}],
    57: [{"input_uncached": 7, "cache_read": 16399, "cache_write_5m": 2089, "output_text": 445}],
    58: [{"input_uncached": 5734, "cache_read": 4482, "cache_write_5m": 100, "output_text": 178}],
    59: [{"input_uncached": 100, "cache_read": 5000}],
}
# Lines with things that are no spans.
REFUSED = {
    4: ["bad_trace_id", "bad_trace_id", "not_a_list"],
    5: ["bad_attributes"],
    7: ["not_a_list"],
    8: ["not_a_list"],
    31: ["bad_trace_id"] * 4,
    34: ["not_an_object"] * 2,
    35: ["bad_trace_id"] * 2,
}


def payloads() -> list[Any]:
    lines = (TELEMETRY / "otlp_payloads.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["payload"] for line in lines]


def test_every_payload_is_taken_or_refused_span_by_span() -> None:
    refused: dict[int, list[str]] = {}
    measured: dict[int, list[dict[str, int]]] = {}
    for number, given in enumerate(payloads()):
        for found in spans_of(given):
            if isinstance(found, Refused):
                refused.setdefault(number, []).append(found.reason)
                continue
            used = _used(read(found, bytes(32), AT_US))
            if used:
                measured.setdefault(number, []).append(used)
    assert refused == REFUSED
    assert measured == USED


def _used(found: Reading) -> dict[str, int]:
    assert (found.call is not None) is (found.kind in CALLS)
    if found.call is None or found.call.exchange.usage.quality != "measured":
        return {}
    return {name: count for name, count in found.call.exchange.usage.classes.items() if count}


def test_of_the_ai_sdk_s_pairs_the_inner_one_is_billed() -> None:
    total: dict[Kind, int] = {}
    for given in json.loads((TELEMETRY / "openinference-all-spans.json").read_text()):
        found = read(_exported(given), bytes(32), AT_US)
        count = 0 if found.call is None else sum(found.call.exchange.usage.classes.values())
        total[found.kind] = total.get(found.kind, 0) + count
    # 14 + 20, 50 + 9, 63 + 156 and 15 + 112 tokens of five calls; each stands twice in the file.
    assert total == {Kind.CALL: 439, Kind.EMBEDDING: 10, Kind.WRAPPER: 0}


def _exported(given: dict[str, Any]) -> Span:
    """Return a span as the JavaScript SDK holds it."""
    context = given["spanContext"]
    return Span(context["traceId"], context["spanId"], attributes=given["attributes"])


@pytest.mark.parametrize(
    "name", ["openinference_client_span_tool_calls", "otel_genai_client_span_tool_calls"]
)
def test_the_same_call_in_two_conventions_says_the_same(name: str) -> None:
    given = json.loads((TELEMETRY / f"openinference-{name}.json").read_text())
    exchange = call(given).exchange
    assert (exchange.model, exchange.usage.cost_nano_usd) == ("gpt-4-0613", 6_030_000)
    assert exchange.message is not None
    assert (exchange.message.role, exchange.message.text) == ("tool", "rainy, 57°F")
    assert exchange.choices[0].text.startswith("The weather in Paris is currently rainy")


def test_a_tool_s_span_is_no_call_of_a_model() -> None:
    path = TELEMETRY / "openinference-otel_genai_tool_execution_span.json"
    assert reading(json.loads(path.read_text())).kind is Kind.TOOL
