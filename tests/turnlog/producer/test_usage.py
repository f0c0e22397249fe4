"""What a run used: as the caller says it or the response does, never guessed."""

from typing import Any

import pytest

from tests.turnlog.producer.parts import ORG, content_of, producer_in_memory
from turnlog.errors import UsageError

OPENAI = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 40},
}
ANTHROPIC = {"input_tokens": 7, "cache_read_input_tokens": 30, "output_tokens": 5}
GEMINI = {"promptTokenCount": 9, "candidatesTokenCount": 4, "totalTokenCount": 13}
CONVERSE = {"inputTokens": 9, "cacheReadInputTokens": 5, "outputTokens": 4}
COHERE = {"billed_units": {"input_tokens": 7, "output_tokens": 9}}
RESPONSE = (
    b'{"id":"r","object":"chat.completion","model":"gpt-4o-mini-2024-07-18","choices":[{"index":0,'
    b'"finish_reason":"stop","message":{"role":"assistant","content":"answered"}}],'
    b'"usage":{"prompt_tokens":100,"completion_tokens":20,"total_tokens":120}}'
)


async def ended(response: bytes | None, usage: Any, **fields: Any) -> tuple[Any, Any, Any]:
    """Return the usage event, the terminal event and its content."""
    given = {"org": ORG, "provider": "openai", "model": "gpt-4o-mini"} | fields
    async with producer_in_memory() as opened:
        async with opened.producer.run(**given) as run:
            await run.complete(response, usage)
        (used,) = opened.transport.of("usage.recorded")
        (end,) = opened.transport.of("run.completed")
        content = content_of(opened.grant, "run.completed", end, "o") if end["frame"] else {}
        return used, end, content


async def test_given_classes_are_measured_and_priced() -> None:
    used, _, _ = await ended(None, {"input_uncached": 1000, "output_text": 10, "cache_read": 0})
    assert (used["quality"], used["input_uncached"], used["output_text"]) == ("measured", 1000, 10)
    assert used["cost_nano_usd"] == 1000 * 150 + 10 * 600
    assert used["price_version"].startswith("genai-prices/")


async def test_a_cost_that_no_call_has_is_no_price() -> None:
    used, end, _ = await ended(None, {"output_text": 2**40}, model="o1-pro")
    assert (used["output_text"], used["cost_nano_usd"], used["price_version"]) == (2**40, None, "")
    assert end["status"] == "completed"


async def test_a_model_without_a_price_has_no_cost() -> None:
    used, _, _ = await ended(None, {"output_text": 10}, model="nobody-knows-it")
    assert (used["quality"], used["cost_nano_usd"], used["price_version"]) == ("measured", None, "")


@pytest.mark.parametrize(
    ("provider", "model", "block", "counts"),
    [
        ("openai", "gpt-4o", OPENAI, (60, 40, 20)),
        ("anthropic", "claude-sonnet-4-5", ANTHROPIC, (7, 30, 5)),
        ("google", "gemini-2.5-flash", GEMINI, (9, 0, 4)),
        ("openai", "gpt-4o", {"input_tokens": 3, "output_tokens": 4}, (3, 0, 4)),
        ("bedrock", "amazon.nova-lite-v1:0", CONVERSE, (9, 5, 4)),
        ("cohere", "command-r", COHERE, (7, 0, 9)),
    ],
)
async def test_a_providers_usage_block_is_read(
    provider: str, model: str, block: dict[str, Any], counts: tuple[int, int, int]
) -> None:
    used, _, _ = await ended(None, block, provider=provider, model=model)
    assert used["quality"] == "measured"
    assert (used["input_uncached"], used["cache_read"], used["output_text"]) == counts
    assert used["provider_usage"]
    assert used["cost_nano_usd"]


async def test_without_usage_the_response_is_read() -> None:
    used, end, content = await ended(RESPONSE, None)
    assert (used["quality"], used["input_uncached"], used["output_text"]) == ("measured", 100, 20)
    assert end["finish_reason"] == "stop"
    assert end["model"] == "gpt-4o-mini-2024-07-18"
    assert content["response"] == RESPONSE
    assert content["output"] == [{"index": 0, "text": "answered"}]


@pytest.mark.parametrize("response", [None, b"", b"no json", b'{"choices": []}', b"\x00\xff"])
async def test_where_nobody_knows_it_is_unknown_and_not_zero(response: bytes | None) -> None:
    used, _, _ = await ended(response, None)
    assert used["quality"] == "unknown"
    assert used["reason"]
    assert used["cost_nano_usd"] is None


@pytest.mark.parametrize(
    "usage", [{"input_uncached": -1}, {"output_text": 1.5}, {"output_text": True}, [1], {3: 4}, "x"]
)
async def test_usage_that_is_none_is_refused_and_the_run_is_still_open(usage: Any) -> None:
    async with producer_in_memory() as opened, opened.producer.run(org=ORG) as run:
        with pytest.raises(UsageError, match=r"usage"):
            await run.complete(usage=usage)
        assert opened.transport.types() == ["run.created"]
        await run.complete()


async def test_an_unknown_usage_block_is_kept_as_numbers() -> None:
    used, _, _ = await ended(None, {"units": {"tokens": 12.50}})
    assert (used["quality"], used["reason"]) == ("unknown", "not_understood")
    assert used["provider_usage"] == {"units.tokens": "12.5"}
