"""The two Faust tables, read and written by partition.

Faust's own `table[key] = value` sends its changelog record through a buffer whose flush gives up
after 0.1 s (faust-kafka.md F4), after the local store was already written: a crash can leave the
local store ahead of the changelog for ever. Here the changelog is written first, acknowledged, and
only then the local store, together with the offset of the changelog that it is at. Recovery and
rebalancing are Faust's.
"""

import logging
from collections.abc import Iterable
from typing import Any, cast

import faust
import rocksdict
from faust.stores.rocksdb import Store

# RocksDB's defaults in Faust are 2 GiB of cache and 192 MiB of write buffers a partition (F16).
_OPTIONS = {
    "driver": "rocksdict",
    "block_cache_size": 16 << 20,
    "write_buffer_size": 8 << 20,
    "max_write_buffer_number": 2,
    "max_open_files": 256,
    "bloom_filter_size": 10,
}


class Table(faust.Table[bytes, bytes]):
    """A table of bytes by bytes."""

    logger = logging.getLogger("faust.turnlog")

    def fetch(self, partition: int, key: bytes) -> bytes | None:
        """Return the value of a key, None where there is none."""
        return cast(bytes | None, self._store_of(partition).get(key))

    def keep(self, partition: int, rows: Iterable[tuple[bytes, bytes]], offset: int) -> None:
        """Write rows that the changelog has acknowledged, in one step with where it is.

        Args:
            partition: partition of the changelog and of the source.
            rows: keys and values.
            offset: the highest offset of these rows in the changelog.
        """
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in rows:
            batch.put(key, value)
        batch.put(Store.offset_key, str(offset).encode())
        self._store_of(partition).write(batch)

    def _store_of(self, partition: int) -> Any:
        return cast(Store, self.data)._db_for_partition(partition)


def make(app: faust.App, name: str, partitions: int) -> Table:
    """Declare a table; its changelog is `{app id}-{name}-changelog`.

    Faust takes options out of the dict that it is given, so each table gets its own.
    """
    table = app.Table(
        name,
        key_type=bytes,
        value_type=bytes,
        partitions=partitions,
        options=dict(_OPTIONS),
        recovery_buffer_size=1000,
    )
    return cast(Table, table)
