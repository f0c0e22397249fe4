"""Frames too large for a record: kept in the spool, put into S3, and only then named in Kafka.

On its way such a record has its frame in two headers of its own, which Kafka never sees. botocore
is imported when the first one is put: the gateway wheel brings it as the extra `large`.
"""

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.events import Headers
from turnlog.keys import MAX_FRAME_BYTES, Sealer
from turnlog.keys.content import MAX_CONTENT_BYTES
from turnlog.keys.frames import OVERHEAD_BYTES
from turnlog.keys.outside import Pointer, point_to
from turnlog.s3 import s3_client

logger = logging.getLogger(__name__)

# Content from this size on is sealed in a thread: zstd takes 2 ms for it, the loop has 10.
LARGE_BYTES = 256 << 10
_KEY = "turnlog-frame-key"
FRAME = "turnlog-frame"
_EXISTS = frozenset(("PreconditionFailed", "412", "ConditionalRequestConflict", "409"))
PUT_TIMEOUT_S = 60


def is_large(content: Mapping[str, Any], output_chars: int = 0) -> bool:
    """Tell whether content should be sealed in a thread."""
    sizes = (len(value) for value in content.values() if isinstance(value, bytes | str))
    return sum(sizes) + output_chars >= LARGE_BYTES


def sealed_large(
    sealer: Sealer, content: Mapping[str, Any], own: dict[str, Any], type: str
) -> tuple[bytes, Pointer | None]:
    """Seal content of up to 64 MiB; return its frame, and the pointer where it needs one.

    For a thread. `own` has the event's id, seq and time, and is given `content_mac` and `frame`.
    """
    limit = MAX_CONTENT_BYTES + OVERHEAD_BYTES
    frame, own["content_mac"] = sealer.seal(
        content, own["event_id"], own.get("seq", 0), type, limit
    )
    if len(frame) <= MAX_FRAME_BYTES:
        own["frame"] = frame
        return frame, None
    day = datetime.fromtimestamp(own["occurred_at_us"] / 1e6, UTC).date().isoformat()
    pointer = point_to(frame, sealer.org, own["event_id"], day)
    own["frame"] = pointer.packed()
    return frame, pointer


def carrying(headers: Headers, pointer: Pointer, frame: bytes) -> Headers:
    """Return headers that carry a frame to the spool."""
    return [*headers, (_KEY, pointer.key.encode()), (FRAME, frame)]


def carried(headers: Headers) -> tuple[str, bytes] | None:
    """Return the object key and the frame that headers carry; None: they carry none."""
    if len(headers) < 2 or headers[-1][0] != FRAME:
        return None
    return headers[-2][1].decode(), headers[-1][1]


def without(headers: Headers) -> Headers:
    """Return the headers as Kafka gets them."""
    return headers[:-2] if carried(headers) else headers


class Objects:
    """Puts frames into the content bucket; called in threads.

    Args:
        config: address, credentials and bucket.
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    @cached_property
    def _client(self) -> Any:
        # One attempt: the drain tries again by itself.
        return s3_client(self._config, read_timeout_s=PUT_TIMEOUT_S, attempts=1)

    def put(self, key: str, frame: bytes) -> None:
        """Write a frame; one that is there is the same, because its digest is part of its key.

        Raises:
            Unavailable: S3 does not answer or refuses, or boto3 is not installed.
        """
        try:
            from botocore.exceptions import BotoCoreError, ClientError

            client = self._client
        except ImportError as error:
            raise Unavailable("large content needs boto3: turnlog-gateway[large]") from error
        try:
            client.put_object(
                Bucket=self._config.content_bucket, Key=key, Body=frame, IfNoneMatch="*"
            )
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code not in _EXISTS:
                raise Unavailable(f"S3 does not take a frame: {code}") from error
        except BotoCoreError as error:
            raise Unavailable(f"S3 does not answer: {type(error).__name__}") from error


async def frame_is_out(headers: Headers, objects: Objects | None) -> bool:
    """Put the frame that headers carry into S3; False while it has to wait."""
    large = carried(headers)
    if large is None:
        return True
    if objects is None:
        logger.error("a large frame waits on the disk: this producer has no S3 address")
        return False
    try:
        await asyncio.to_thread(objects.put, *large)
    except Unavailable as error:
        logger.warning("a large frame waits on the disk: %s", error)
        return False
    return True
