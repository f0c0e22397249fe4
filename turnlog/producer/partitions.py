"""How many partitions each topic has, kept beside the spool for a start without Kafka."""

import json
import logging
import os
from contextlib import suppress
from pathlib import Path

from turnlog.spool.files import is_plain

logger = logging.getLogger(__name__)

_NAME = "partitions.json"


def recalled(spool: Path) -> dict[str, int]:
    """Return what Kafka said last; nothing where it never did, or the file is none of ours."""
    path = spool / _NAME
    try:
        counts = json.loads(path.read_bytes()) if is_plain(path) else {}
    except (OSError, ValueError) as error:
        logger.warning("spool: %s cannot be read: %s", _NAME, type(error).__name__)
        return {}
    if not isinstance(counts, dict) or not all(type(count) is int for count in counts.values()):
        logger.warning("spool: %s is not the spool's", _NAME)
        return {}
    return counts


def remember(spool: Path, counts: dict[str, int]) -> None:
    """Note what Kafka says; where that fails, only a start without Kafka does."""
    path = spool / _NAME
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        draft.write_text(json.dumps(counts))
        draft.replace(path)
    except OSError as error:
        logger.warning("spool: %s cannot be written: %s", _NAME, error.strerror)
        with suppress(OSError):
            draft.unlink(missing_ok=True)
