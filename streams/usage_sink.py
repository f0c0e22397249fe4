"""Worker `usage-sink`: `turnlog.usage` into the ClickHouse table `usage`."""

from processors.usage import canonical
from sinks.clickhouse.tables import USAGE, ensure_tables
from streams.batch import run_sink
from streams.rows_digest import table_digest
from streams.rows_sink import RowsSink
from streams.views import named
from turnlog.config import Config
from turnlog.kafka import partitions_of

VIEW, WORKER, GROUP, TOPICS, TABLE, _ = named("usage")


def run(config: Config) -> None:
    """Work until SIGTERM.

    Raises:
        Unavailable: Kafka or ClickHouse failed; start again.
        Stopped: a person has to look first.
    """
    clickhouse = ensure_tables(config, USAGE)
    partitions = len(partitions_of(config, USAGE.topic))
    run_sink(config, WORKER, TOPICS, RowsSink(clickhouse, USAGE, partitions))


def digest(config: Config) -> tuple[int, str]:
    """Return the number of distinct events in the table and its digest.

    Raises:
        Unavailable: ClickHouse does not answer.
    """
    return table_digest(config, USAGE, canonical)
