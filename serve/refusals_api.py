"""Appends that the fold of conversations refused: what was decided otherwise, where, and why.

A refusal is no dead letter: the event could be read, and stays in the log; the log had already
decided otherwise (`turnlog.refusals`, kept for 30 days). Its text is never shown.
"""

from collections.abc import Iterator
from typing import Any

from turnlog.config import Config
from turnlog.errors import DecodeError
from turnlog.events import decode
from turnlog.kafka import read_all

TOPIC = "turnlog.refusals"
VIEW = "conversations"
_ABOUT = ("org", "conversation", "run", "turn")
_EXPECTED = ("expected_last_seq", "last_seq", "expected_leaf_version", "current_leaf_version")


def refusals(config: Config) -> Iterator[dict[str, Any]]:
    """Yield every distinct refusal, as far as the topic reaches at the call.

    Yields:
        `view`, `topic`, `partition`, `offset`, `reason` as a dead letter has them; `type` of the
        event; org, conversation, run and turn, "" where it has none; and what its writer expected
        beside what was there, null where it was not asked.

    Raises:
        Unavailable: Kafka does not answer.
    """
    seen: set[bytes] = set()
    for message in read_all(config, TOPIC):
        try:
            body = decode(message.value() or b"").body
        except DecodeError:
            continue  # a stranger's record: this topic is nobody's input, nothing is lost
        if body["event_id"] not in seen:
            seen.add(body["event_id"])
            yield _row(body)


def _row(body: dict[str, Any]) -> dict[str, Any]:
    place = {name: body.get(f"refused_{name}") for name in ("topic", "partition", "offset")}
    what = {"reason": body.get("reason", ""), "type": body.get("refused_type", "")}
    more = {name: body.get(name) for name in (*_ABOUT, *_EXPECTED)}
    return {"view": VIEW, **place, **what, **more}
