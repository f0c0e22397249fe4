"""Worker `runs-sink`: `turnlog.runs` into the ClickHouse table `runs`."""

from collections.abc import Collection, Iterable, Sequence

from confluent_kafka import Message

from processors.runs import Subjects, canonical
from sinks.clickhouse.client import ClickHouse
from sinks.clickhouse.queries import run_subjects
from sinks.clickhouse.tables import RUNS, ensure_tables
from streams.batch import Partition, run_sink
from streams.dead import Dead
from streams.rows_digest import table_digest
from streams.rows_sink import RowsSink
from streams.views import named
from turnlog.config import Config
from turnlog.errors import DecodeError
from turnlog.events import TYPES, Event, decode, key_of
from turnlog.kafka import partitions_of

CONFLICT = "conflict: the run began under another user, conversation or key locator"
# Of so many runs it is remembered how they began, about 300 bytes each; others are looked up.
_RUNS = 100_000

VIEW, WORKER, GROUP, TOPICS, TABLE, _ = named("runs")


class RunsSink(RowsSink):
    """Rows of runs; an event that is not of the subject that its run began with is refused.

    Args:
        clickhouse: connection.
        partitions: how many the topic has.
    """

    def __init__(self, clickhouse: ClickHouse, partitions: int) -> None:
        super().__init__(clickhouse, RUNS, partitions)
        self._subjects = Subjects()

    def forget(self, partitions: Collection[Partition]) -> None:
        """Drop what is known of partitions that another worker owns now."""
        super().forget(partitions)
        self._subjects = Subjects()

    def write(self, messages: Sequence[Message]) -> list[Dead]:
        """Insert a batch; on return its rows are in the table."""
        events = [self._with_content(message) for message in messages]
        self._look_up(zip(messages, events, strict=True))
        strays = {
            at
            for at, (message, event) in enumerate(zip(messages, events, strict=True))
            if event and not self._subjects.agrees(message.partition() or 0, event.body)
        }
        self._subjects.forget(keep=_RUNS)
        if not strays:
            return super().write(messages)
        right = [message for at, message in enumerate(messages) if at not in strays]
        dead = [Dead(messages[at], CONFLICT) for at in sorted(strays)]
        self._prepared.clear()  # it holds the strays
        return dead + (super().write(right) if right else [])

    def _with_content(self, message: Message) -> Event | None:
        """Decode an event; None where it has no content, or is refused for what or where it is."""
        try:
            event = decode(message.value() or b"")
        except DecodeError:
            return None
        right = TYPES[event.type].topic == RUNS.topic and key_of(*event) == message.key()
        if not right or self._is_misplaced(message.key(), message.partition()):
            return None
        return event if event.body["content_mac"] else None

    def _look_up(self, events: Iterable[tuple[Message, Event | None]]) -> None:
        """Ask the table how runs began that are met again after a restart or a long time."""
        asked = set()
        for message, event in events:
            if event is None or event.type == "run.created":
                continue  # another beginning has the same event id, and is told by that
            place = message.partition() or 0, event.body["org"], event.body["run"]
            if self._subjects.missing(place):
                asked.add(place)
        for place, subject in run_subjects(self._clickhouse, asked):
            self._subjects.learn(place, subject)


def run(config: Config) -> None:
    """Work until SIGTERM.

    Raises:
        Unavailable: Kafka or ClickHouse failed; start again.
        Stopped: a person has to look first.
    """
    clickhouse = ensure_tables(config, RUNS)
    partitions = len(partitions_of(config, RUNS.topic))
    run_sink(config, WORKER, TOPICS, RunsSink(clickhouse, partitions))


def digest(config: Config) -> tuple[int, str]:
    """Return the number of distinct events in the table and its digest.

    Raises:
        Unavailable: ClickHouse does not answer.
    """
    return table_digest(config, RUNS, canonical)
