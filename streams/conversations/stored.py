"""The view's digest, from the changelogs of its two tables."""

from collections.abc import Iterator
from typing import cast

from processors.conversation_rows import (
    Decision,
    Head,
    Row,
    Turn,
    canonical_rows,
    stream_of,
    unpack_decision,
    unpack_stored,
    unpack_turn,
)
from processors.digest import ViewDigest
from streams.conversations import HEADS_CHANGELOG, TURNS_CHANGELOG
from turnlog.config import Config
from turnlog.kafka import read_all


def digest(config: Config) -> tuple[int, str]:
    """Return how many events the tables hold and the digest of their rows.

    Raises:
        Unavailable: Kafka does not answer.
    """
    # Turns first: a head that is read later carries what its turns may lack.
    turns = latest(config, TURNS_CHANGELOG)
    heads = latest(config, HEADS_CHANGELOG)
    view = ViewDigest(keep_repeats=True)
    for row in canonical(heads, turns):
        view.add(*row)
    return view.result()


def latest(config: Config, topic: str) -> dict[bytes, bytes]:
    """Return the last value of each key of a changelog.

    Raises:
        Unavailable: Kafka does not answer.
    """
    found: dict[bytes, bytes] = {}
    for message in read_all(config, topic):
        key, value = cast(bytes, message.key()), message.value()
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found


def canonical(heads: dict[bytes, bytes], rows: dict[bytes, bytes]) -> Iterator[Row]:
    """Yield the canonical rows of what the two tables hold.

    Args:
        heads: stream keys and stored heads.
        rows: keys and values of turns and decisions.
    """
    whole: dict[bytes, Head] = {}
    rows = dict(rows)
    for stream, value in heads.items():
        stored = unpack_stored(value)
        whole[stream] = stored.head
        rows.update(stored.redo)
    turns: dict[bytes, list[Turn]] = {stream: [] for stream in whole}
    decisions: dict[bytes, list[tuple[bytes, Decision]]] = {stream: [] for stream in whole}
    for key, value in rows.items():
        stream, kind = stream_of(key)
        if kind == b"t":
            turns[stream].append(unpack_turn(value))
        else:
            decisions[stream].append((key[-16:], unpack_decision(value)))
    for stream, head in whole.items():
        yield from canonical_rows(stream, head, turns[stream], decisions[stream])
