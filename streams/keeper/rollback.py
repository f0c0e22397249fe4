"""A keeper never writes over a topic that was rolled back: it would bring erased keys back."""

from collections.abc import Mapping
from hashlib import sha256

from turnlog.errors import KeyUnavailable
from turnlog.keys.heads import Floor, stated_gen


def require_floors(rows: Mapping[bytes, bytes], floors: Mapping[bytes, Floor]) -> None:
    """Check that no head is older than one that this home has seen.

    Args:
        rows: of one partition, read to its end.
        floors: of the trees of that partition.

    Raises:
        KeyUnavailable: a head is missing, older, or another one of the same generation.
    """
    for row_key, floor in floors.items():
        name, value = row_key.decode(), rows.get(row_key)
        gen = 0 if value is None else stated_gen(row_key, value)
        if gen < floor.gen:
            raise KeyUnavailable(
                f"{name}: the topic has generation {gen}, {floor.gen} was seen before: it was"
                " rolled back, and nothing is written to it"
            )
        if gen == floor.gen and sha256(value or b"").digest() != floor.digest:
            raise KeyUnavailable(f"{name}: another head of generation {gen} was seen before")


def floors_of(rows: Mapping[bytes, bytes | None]) -> dict[bytes, Floor]:
    """Return the floors that the heads among rows make."""
    return {
        key: Floor(stated_gen(key, value), sha256(value).digest())
        for key, value in rows.items()
        if value is not None and key.endswith(b"/head")
    }
