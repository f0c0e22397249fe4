"""Where heads that are not the present ones still are, and why: from facts, not from hope.

A head that a puncture replaced opens what it erased for as long as its bytes are somewhere. Kafka's
cleaner drops a record once a later one of the same key lies in front of it in the part that it may
clean: not in the active segment, not behind the last stable offset.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer

from streams.keys.check import LocalCopy
from streams.keys.log import Log, org_of, tree_of
from streams.keys.rows import HEAD
from streams.keys.segments import PartitionFiles, StoredRow, cluster_of, rows_in
from turnlog.config import Config
from turnlog.kafka import ANSWER_S, reader_settings
from turnlog.passing import bounds

REMOTE = (
    "this Kafka's log directories are not on this machine: segments, the cleaner's checkpoint and"
    " files that wait for deletion cannot be seen from here, nor can other replicas"
)


class Kept(NamedTuple):
    """An old head that is still there.

    Attributes:
        org: whose.
        tree: tree id in hex.
        generation: of the old head.
        where: the file, the offset, or the local copy.
        why: `active segment`, `open transaction`, `uncleaned`, `deleted file`, `local copy`, or
            `in the log` where a remote Kafka shows no more.
        detail: in words.
    """

    org: str
    tree: str
    generation: int
    where: str
    why: str
    detail: str


def log_folder(config: Config, cluster: str) -> Path | None:
    """Return the log directory of the local stack's broker, None where Kafka is another one."""
    folder = config.home / "kafka" / "data"
    return folder if cluster and cluster_of(folder) == cluster else None


def stable_end(config: Config, topic: str, number: int) -> int:
    """Return a partition's last stable offset: behind it lies a transaction that is not decided.

    Raises:
        Unavailable: Kafka does not answer.
    """
    consumer = Consumer(reader_settings(config, "read_committed"))
    try:
        return bounds(consumer, topic, number, ANSWER_S)[1]
    finally:
        consumer.close()


def kept_in_files(files: PartitionFiles, stable: int, log: Log, org: str = "") -> Iterator[Kept]:
    """Give the old heads in the files of a partition.

    Args:
        files: of the partition.
        stable: the partition's last stable offset.
        log: which heads are the present ones.
        org: only this org's; "" for all.

    Raises:
        Unavailable: a segment is of a form that is not known here.
    """
    limits = files.active_from, files.cleaned_to()
    later: dict[bytes, int] = {}
    for path in reversed(files.live()):
        for row in reversed(list(_heads(path, org))):
            if _is_old(log, row):
                yield _kept(row, _name(path), _reason(later[row.key], stable, *limits))
            later[row.key] = row.offset
    for path in files.leftovers():
        reason = "deleted file", "the cleaner's leftover goes after file.delete.delay.ms"
        for row in _heads(path, org):
            if _is_old(log, row):
                yield _kept(row, _name(path), reason)


def kept_in_log(log: Log, seen: Log, stable: Mapping[int, int], org: str = "") -> Iterator[Kept]:
    """Give the old heads that a remote Kafka still serves.

    Args:
        log: which heads are the present ones.
        seen: the same topic, read uncommitted from its beginning.
        stable: last stable offset by partition.
        org: only this org's; "" for all.
    """
    for key, heads in seen.heads.items():
        if org not in ("", org_of(key)):
            continue
        for at, head in enumerate(heads):
            row = StoredRow(head.offset, key, head.value)
            if head.value is None or not _is_old(log, row):
                continue
            later = heads[at + 1]
            reason = ("in the log", "the broker still serves it; why cannot be seen from here")
            if later.offset >= stable[head.partition]:
                reason = _open(stable[head.partition])
            yield _kept(row, f"partition {head.partition}", reason)


def kept_in_copies(copies: list[LocalCopy], log: Log, org: str = "") -> Iterator[Kept]:
    """Give the old heads in local copies, and the trees whose old rows are not compacted away."""
    for copy in copies:
        for key, value in copy.rows.items():
            row = StoredRow(-1, key, value)
            if key.endswith(HEAD) and org in ("", org_of(key)) and _is_old(log, row):
                detail = f"begun {copy.age_days:.1f} days ago; it is thrown away after 7"
                yield _kept(row, f"copy {copy.role}", ("local copy", detail))
        for place in copy.unpurged:
            head = log.last.get(place + HEAD[1:])
            if head is not None and org in ("", org_of(place)):
                detail = "rows before the present ones may be in its files until they are compacted"
                where = f"copy {copy.role}"
                yield Kept(org_of(place), tree_of(place), head.gen - 1, where, "local copy", detail)


def _heads(path: Path, org: str) -> Iterator[StoredRow]:
    for row in rows_in(path):
        if row.key.endswith(HEAD) and row.value is not None and org in ("", org_of(row.key)):
            yield row


def _is_old(log: Log, row: StoredRow) -> bool:
    """Tell whether a head came before the present one; a copy's rows have no offset and all did."""
    last = log.last.get(row.key)
    return last is not None and row.offset < last.offset and row.value != last.value


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _kept(row: StoredRow, where: str, reason: tuple[str, str]) -> Kept:
    gen = int.from_bytes((row.value or b"")[5:13], "big")
    place = where if row.offset < 0 else f"{where}@{row.offset}"
    return Kept(org_of(row.key), tree_of(row.key), gen, place, *reason)


def _open(stable: int) -> tuple[str, str]:
    return "open transaction", f"nothing from offset {stable} on, the last stable one, is cleaned"


def _reason(later: int, stable: int, active_from: int, cleaned_to: int) -> tuple[str, str]:
    """Return why a head stays whose successor is at an offset."""
    if later >= stable:
        return _open(stable)
    if later >= active_from:
        detail = f"the segment from offset {active_from} on is written to; a later record rolls it"
        return "active segment", detail
    if later >= cleaned_to:
        return "uncleaned", f"the cleaner has cleaned up to offset {cleaned_to}"
    return "uncleaned", f"cleaned up to offset {cleaned_to}, and kept: another pass will remove it"
