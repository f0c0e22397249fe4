"""One conversation as people and programs read it.

Its tree comes from the read model in Redis, or from the log where Redis does not have all of it.
Texts are opened one by one; what an answer says and how it ended is joined from its run.

What an org may see comes from the credential that lies here (law 8). A conversation that is missing
and one of another org get one and the same answer.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from processors.conversation_rows import (
    Created,
    Head,
    Turn,
    unpack_head,
    unpack_turn,
    visible_path,
)
from processors.conversations import APPENDED, CREATED
from processors.runs import TOPIC as RUNS_TOPIC
from serve.identified import identified
from serve.runs_api import printable
from serve.runs_query import ended_query
from sinks.clickhouse.client import ClickHouse
from sinks.redis import connect
from sinks.redis.conversations import (
    CREATED_FRAME,
    HEAD,
    TURN,
    Conversations,
    Fields,
    frame_field,
)
from streams.content import Content, Sealed
from streams.conversations.rebuild import rebuild
from turnlog.config import Config
from turnlog.errors import (
    Erased,
    FrameError,
    NotFound,
    Unavailable,
)
from turnlog.ids import is_id, stream_key
from turnlog.keeper_client import credential_of, credential_path

logger = logging.getLogger(__name__)


class Ended(NamedTuple):
    """The terminal event of a run: how it ended and where its output is."""

    status: str
    partition: int
    offset: int
    has_content: bool


class Conversation(NamedTuple):
    """A conversation with its texts.

    Attributes:
        conversation: its id.
        title: what it is called, None where it has no title or its key was destroyed.
        leaf: the turn in which the visible path ends, None while there is no turn.
        turns: rows of `turn, parent, turn_seq, role, run, status, text`.
        calls: what answers called, `name(arguments)` by turn.
        unreadable: where a frame does not open, one line each.
    """

    conversation: str
    title: str | None
    leaf: str | None
    turns: list[dict[str, Any]]
    calls: dict[str, list[str]]
    unreadable: list[str]


def read_conversation(
    config: Config, org: str, conversation: str, *, everything: bool = False
) -> Conversation:
    """Return a conversation, its turns in the order of turn_seq.

    Args:
        config: where the parts are.
        org: whose it is.
        conversation: its id, or the value from which an import made the id (its `file`).
        everything: all turns, siblings included; by default the visible path.

    Raises:
        NotFound: missing, or another org's.
        UsageError: there is no stack here.
        KeyUnavailable: a key cannot be derived now: retry.
        Unavailable: a part does not answer.
    """
    missing = NotFound(f"conversation {conversation}: not found")
    config.require_home()
    if not is_id(org) or not credential_path(config, org).exists():
        raise missing
    credential_of(config, org)
    found = identified(config, org, "conversation", conversation)
    fields = found and _fields(config, stream_key(org, found, ""))
    if not fields or not _is_begun(unpack_head(fields[HEAD])):
        raise missing
    with Content(config, org) as content:
        return _Reading(config, content, fields).read(everything)


def _fields(config: Config, stream: bytes) -> Fields | None:
    """Return all fields of the read model, folded again where Redis does not have them."""
    hot = Conversations(connect(config))
    try:
        fields = hot.read(stream)
    except Unavailable as error:
        logger.warning("read from the log: %s", error)
        return (rebuild(config, stream) or (None, None))[1]
    if is_whole(fields):
        return fields
    rebuilt = rebuild(config, stream)
    if rebuilt is None:
        return None
    hot.replace(stream, rebuilt[0].applied, rebuilt[1])
    return rebuilt[1]


def is_whole(fields: Fields) -> bool:
    """Say whether a hash has its head and as many turns as the head says."""
    turns = sum(1 for field in fields if field.startswith(TURN))
    return HEAD in fields and unpack_head(fields[HEAD]).turns == turns


def _is_begun(head: Head) -> bool:
    """Say whether anything of a conversation was accepted; a refused append begins none."""
    return head.turns > 0 or head.created is not None


class _Reading:
    """Reads one conversation out of the fields of its hash."""

    def __init__(self, config: Config, content: Content, fields: Fields) -> None:
        self._config = config
        self._content = content
        self._fields = fields
        self._head = unpack_head(fields[HEAD])
        self._calls: dict[str, list[str]] = {}
        self._unreadable: list[str] = []

    def read(self, everything: bool) -> Conversation:
        head = self._head
        turns = self._turns(everything)
        answers = {turn.run for turn in turns if turn.run}
        ended = dict(_ended(self._config, head)) if answers else {}
        rows = [self._row(turn, ended.get(turn.run)) for turn in turns]
        created = head.created
        return Conversation(
            conversation=head.conversation,
            title=None if created is None else self._title(created),
            leaf=head.leaf or None,
            turns=rows,
            calls=self._calls,
            unreadable=self._unreadable,
        )

    def _turns(self, everything: bool) -> list[Turn]:
        packed = (value for field, value in self._fields.items() if field.startswith(TURN))
        turns = {turn.turn: turn for turn in map(unpack_turn, packed)}
        shown = turns.values() if everything else visible_path(self._head, turns)
        return sorted(shown, key=lambda turn: (turn.turn_seq, turn.turn))

    def _row(self, turn: Turn, ended: Ended | None) -> dict[str, Any]:
        status = None
        if turn.run:
            status = "running" if ended is None else ended.status
        return {
            "turn": turn.turn,
            "parent": turn.parent or None,
            "turn_seq": turn.turn_seq,
            "role": turn.role,
            "run": turn.run or None,
            "status": status,
            "text": self._answered(turn, ended) if turn.run else self._spoken(turn),
        }

    def _spoken(self, turn: Turn) -> str | None:
        frame = self._fields.get(frame_field(turn.turn))
        text = self._open(APPENDED, turn, {"turn": turn.turn}, frame).get("text")
        return None if text is None else str(printable(text))

    def _title(self, created: Created) -> str | None:
        frame = self._fields.get(CREATED_FRAME)
        title = self._open(CREATED, created, {}, frame).get("title")
        return None if title is None else str(printable(title))

    def _open(
        self, kind: str, row: Turn | Created, own: Mapping[str, Any], frame: bytes | None
    ) -> Mapping[str, Any]:
        """Return the content of a frame from the read model; none where it was erased."""
        if not frame:
            return {}
        tree, day, gen = row.locator
        body: dict[str, Any] = {
            **own,
            "org": self._head.org,
            "conversation": self._head.conversation,
            "user": row.user,
            "event_id": row.event_id,
            "content_mac": row.content_mac,
            "writer_epoch": row.writer_epoch,
            "seq": row.seq,
            "key_tree": tree,
            "key_day": day,
            "key_gen": gen,
            "topic": "turnlog.turns",
            "partition": getattr(row, "partition", "?"),
            "offset": getattr(row, "offset", "?"),
        }
        try:
            return self._content.unseal(Sealed("read model", kind, body, frame))
        except Erased:
            return {}
        except FrameError as error:
            self._unreadable.append(str(error))
            return {}

    def _answered(self, turn: Turn, ended: Ended | None) -> str | None:
        """Return the text of an answer's first choice, "" while there is none yet."""
        if ended is None or not ended.has_content:
            return ""
        place = ended.partition, ended.offset
        try:
            content = self._content.open(self._head.org, RUNS_TOPIC, *place)
        except Erased:
            return None
        except FrameError as error:
            self._unreadable.append(str(error))
            return None
        choices: list[dict[str, Any]] = printable(content.get("output") or [{}])
        calls = choices[0].get("tool_calls", ())
        self._calls[turn.turn] = [f"{c.get('name', '')}({c.get('arguments', '')})" for c in calls]
        return str(choices[0].get("text", ""))


def _ended(config: Config, head: Head) -> Iterator[tuple[str, Ended]]:
    """Yield the runs of a conversation that have ended."""
    sql, parameters = ended_query(config.clickhouse_database, head.org, head.conversation)
    return ((run, Ended(*ended)) for run, ended in ClickHouse(config).rows(sql, parameters))
