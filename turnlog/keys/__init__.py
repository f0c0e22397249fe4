"""Keys and frames: a puncturable tree of keys, and content sealed under its leaves (docs/keys.md).

Pure: bytes and mappings in, keys and rows out. Who keeps the rows is `streams.keeper`.
"""

from turnlog.keys.cache import KeySource, NodeCache
from turnlog.keys.frames import (
    MAX_FRAME_BYTES,
    DataKey,
    Place,
    Sealer,
    open_content,
    place_of,
    seal_content,
)
from turnlog.keys.grant import Grant
from turnlog.keys.index import Locator, Subject, index_of

__all__ = [
    "MAX_FRAME_BYTES",
    "DataKey",
    "Grant",
    "KeySource",
    "Locator",
    "NodeCache",
    "Place",
    "Sealer",
    "Subject",
    "index_of",
    "open_content",
    "place_of",
    "seal_content",
]
