"""Events as Kafka would hold them, for the tests of everything around packs."""

from typing import Any, NamedTuple

from hypothesis import strategies as st

from sinks.packs.writer import PackRecord
from turnlog.events import decode, encode, key_of, slice_frame, without_frame
from turnlog.events.shapes import MAX_EPOCH

TYPES = {
    "turnlog.runs": ("run.created", "run.completed", "run.failed"),
    "turnlog.turns": ("turn.appended", "conversation.created"),
    "turnlog.usage": ("usage.recorded",),
}


class Logged(NamedTuple):
    """A record at its place in the log."""

    topic: str
    partition: int
    offset: int
    append_us: int
    key: bytes
    value: bytes


def logged(topic: str, partition: int, offset: int, type_: str, body: dict[str, Any]) -> Logged:
    value = encode(type_, body)
    key = key_of(type_, decode(value).body)
    return Logged(topic, partition, offset, 1_700_000_000_000_000 + offset * 1000, key, value)


def packed(record: Logged) -> PackRecord:
    event = decode(record.value)
    body = event.body
    entry = (
        body["org"],
        record.topic,
        record.partition,
        record.offset,
        record.append_us,
        event.type,
        body["event_id"],
        body["content_mac"],
        body["conversation"],
        body["run"],
        body["turn"],
        body["user"],
        body["writer_epoch"],
        body["seq"],
        body["key_tree"],
        body["key_day"],
        body["key_gen"],
        body["occurred_at_us"],
        body["time_basis"],
    )
    frame = slice_frame(record.value)[1]
    return PackRecord(entry, record.key, without_frame(record.value), frame)


ids = st.text("abcXYZ019_-", min_size=1, max_size=8)
longs = st.integers(0, 2**63 - 1)


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    framed = draw(st.booleans())
    return {
        "org": draw(st.sampled_from(["acme", "beta", "b"])),
        "conversation": draw(st.just("") | ids),
        "run": draw(ids),
        "event_id": draw(st.binary(min_size=16, max_size=16)),
        "frame": draw(st.binary(min_size=1, max_size=300)) if framed else b"",
        "content_mac": draw(st.binary(min_size=32, max_size=32)) if framed else b"",
        "seq": draw(longs),
        "producer_seq": draw(longs),
        "occurred_at_us": draw(longs),
        "may_repeat": draw(st.booleans()),
        "turn": draw(st.just("") | ids),
        "user": draw(st.just("") | ids),
        "writer_epoch": draw(st.integers(0, MAX_EPOCH)),
        "key_tree": draw(st.binary(min_size=16, max_size=16)),
        "key_day": draw(st.integers(1, 31)),
        "key_gen": draw(st.integers(0, 255)),
        "time_basis": draw(st.sampled_from(["event", "import"])),
    }


@st.composite
def logs(draw: st.DrawFn, max_size: int = 12) -> list[Logged]:
    """Records at distinct coordinates, as a batch of a consumer brings them."""
    places = draw(
        st.lists(
            st.tuples(st.sampled_from(sorted(TYPES)), st.integers(0, 3), st.integers(0, 40)),
            min_size=1,
            max_size=max_size,
            unique=True,
        )
    )
    return [
        logged(*place, draw(st.sampled_from(TYPES[place[0]])), draw(bodies())) for place in places
    ]
