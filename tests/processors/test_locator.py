from typing import Any

from hypothesis import given, settings

from processors.digest import row_hash
from processors.locator import canonical, canonical_row
from sinks.packs.layout import IndexRow
from tests.sinks.packs.events import bodies, logged, packed
from turnlog.events import decode, encode


@settings(max_examples=30, deadline=None)
@given(bodies())
def test_a_row_of_the_index_gives_the_row_that_the_log_gives(body: dict[str, Any]) -> None:
    record = logged("turnlog.runs", 1, 7, "run.completed", body)
    entry = IndexRow._make((*packed(record).entry, 0, 0))
    assert canonical_row(entry._asdict(), entry.type) == canonical(decode(record.value))


def hashed(body: dict[str, Any], **changed: Any) -> bytes:
    found = canonical(decode(encode("run.created", body | changed)))
    assert found is not None
    return row_hash(found[2])


def test_the_row_holds_who_and_what_but_not_where() -> None:
    body = {"org": "acme", "run": "r", "event_id": bytes(16), "occurred_at_us": 5, "seq": 3}
    assert hashed(body) == hashed(body, key_day=4, frame=b"f", model="m")
    for name, value in {"run": "s", "user": "u", "seq": 4, "content_mac": b"m" * 32}.items():
        assert hashed(body) != hashed(body, **{name: value})
