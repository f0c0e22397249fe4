"""The archive: objects as their manifests describe them, read back and verified."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from processors.packs import Claims, Span
from sinks.packs.layout import TRAILER_BYTES, IndexRow, PackError
from sinks.packs.reader import Footer, Pack, read_footer
from sinks.packs.store import PackStore
from streams.manifests import Manifest, live_manifests
from turnlog.config import Config


class Placed(Protocol):
    """Whatever says at which coordinate an event stands."""

    @property
    def topic(self) -> str: ...  # noqa: D102
    @property
    def partition(self) -> int: ...  # noqa: D102
    @property
    def offset(self) -> int: ...  # noqa: D102
    @property
    def event_id(self) -> bytes: ...  # noqa: D102


class Part(NamedTuple):
    """What a manifest owns of its object: the spans that no earlier manifest listed."""

    manifest: Manifest
    owned: tuple[Span, ...]


class Archive:
    """What the manifests list at the moment when this is made.

    Attributes:
        objects: the manifests of each object, and what each owns.

    Raises:
        Unavailable: Kafka does not answer.
    """

    def __init__(self, config: Config) -> None:
        self._store = PackStore(config)
        claims = Claims()
        self.objects: dict[str, list[Part]] = {}
        for manifest in live_manifests(config):
            part = Part(manifest, tuple(claims.claim_all(manifest.spans)))
            self.objects.setdefault(manifest.object, []).append(part)

    def owned(self, name: str) -> Claims:
        """Return which coordinates of an object are its own."""
        claims = Claims()
        for part in self.objects[name]:
            claims.claim_all(part.owned)
        return claims

    def rows(self) -> Iterator[IndexRow]:
        """Yield the index row of every archived record, once, from the footers.

        Raises:
            PackError: an object is missing or damaged.
            Unavailable: S3 does not answer.
        """
        for name, parts in self.objects.items():
            owned = self.owned(name)
            footer = footer_of(self._store, parts[0].manifest)
            yield from (row for row in footer.rows() if place_of(row) in owned)

    def pack(self, name: str) -> Pack:
        """Return an object, read whole and verified against every manifest that names it.

        Raises:
            PackError: it is missing or damaged.
            Unavailable: S3 does not answer.
        """
        data = self._store.read_all(name)
        digests = {part.manifest.digest for part in self.objects[name]}
        if digests != {hashlib.sha256(data).digest()}:
            raise PackError(f"{name}: the object does not have the digest that its manifest names")
        with naming(name):
            return Pack.of_bytes(data)


def place_of(row: IndexRow) -> tuple[str, str, int, int]:
    """Return `(org, topic, partition, offset)` of a record."""
    return row.org, row.topic, row.partition, row.offset


def footer_of(store: PackStore, manifest: Manifest) -> Footer:
    """Read the footer of a manifest's object by one ranged GET.

    Raises:
        PackError: the object is missing or damaged, or is not what the manifest says.
        Unavailable: S3 does not answer.
    """
    name, offset = manifest.object, manifest.footer_offset
    with naming(name):
        if offset + manifest.footer_bytes + TRAILER_BYTES != manifest.size_bytes:
            raise PackError("the manifest's sizes do not fit each other")
    tail = store.read(name, offset, manifest.footer_bytes + TRAILER_BYTES)
    with naming(name):
        return read_footer(tail, manifest.size_bytes)


def rows_of(footer: Footer, manifest: Manifest) -> list[IndexRow]:
    """Return the index rows of the manifest's org.

    Raises:
        PackError: footer and manifest do not list the same records.
    """
    with naming(manifest.object):
        rows = list(footer.rows_of(manifest.org))
        listed = Claims()
        listed.claim_all(manifest.spans)
        if len(rows) != manifest.records or not all(place_of(row) in listed for row in rows):
            raise PackError("the manifest and the footer do not list the same records")
    return rows


def first_occurrences(
    rows: Iterable[Placed],
) -> dict[tuple[str, bytes], tuple[int, int]]:
    """Return the partition and offset at which each event of a topic stands first."""
    first: dict[tuple[str, bytes], tuple[int, int]] = {}
    for row in rows:
        event, place = (row.topic, row.event_id), (row.partition, row.offset)
        first[event] = min(first.get(event, place), place)
    return first


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Put the object's name in front of what is wrong with it."""
    try:
        yield
    except PackError as error:
        raise PackError(f"{name}: {error}") from error
