"""Events of conversations for tests, complete as if they had been decoded."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from processors.conversation_rows import MemoryRows
from processors.conversations import Outcome, apply, fold, fold_all
from processors.digest import ViewDigest
from turnlog.events import Event, decode, encode
from turnlog.ids import event_id

ORG = "org_a"
CONVERSATION = "conv_1"
STREAM = b"org_a/conv_1"
TREE = bytes(range(16))


class At(NamedTuple):
    partition: int
    offset: int


def event(type: str, natural_id: str, **fields: Any) -> Event:
    org = fields.setdefault("org", ORG)
    conversation = fields.setdefault("conversation", CONVERSATION)
    identity = event_id(org, conversation, type, natural_id)
    body = {"event_id": identity, "occurred_at_us": 1_700_000_000_000_000, **fields}
    return decode(encode(type, body))


def appended(turn: str, **fields: Any) -> Event:
    fields.setdefault("content_mac", turn.encode().ljust(32, b"m"))
    fields.setdefault("key_tree", TREE)
    natural_id = fields.pop("natural_id", f"key-{turn}")
    return event("turn.appended", natural_id, turn=turn, **{"role": "user", "user": "u1"} | fields)


def imported(seq: int, turn: str = "", **fields: Any) -> Event:
    role = "assistant" if seq % 2 == 0 else "user"
    fields = {"role": role, "time_basis": "import", "may_repeat": True} | fields
    return appended(turn or f"t{seq}", import_seq=seq, **fields)


def created(natural_id: str = "c", **fields: Any) -> Event:
    return event("conversation.created", natural_id, **{"user": "u1"} | fields)


def placed(events: Iterable[Event]) -> Iterator[tuple[Event, At]]:
    return ((event, At(3, offset)) for offset, event in enumerate(events))


def fold_into(rows: MemoryRows, events: Iterable[tuple[Event, At]]) -> list[Outcome]:
    outcomes = []
    for each, place in events:
        outcomes.append(fold(rows, each, place))
        apply(rows, outcomes[-1], each.body["event_id"])
    return outcomes


def run(*events: Event) -> tuple[MemoryRows, list[Outcome]]:
    rows = MemoryRows()
    return rows, fold_into(rows, placed(events))


def digest(events: Iterable[tuple[Event, At]]) -> tuple[int, str]:
    view = ViewDigest()
    for row in fold_all(events):
        view.add(*row)
    return view.result()
