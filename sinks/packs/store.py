"""Objects in S3: written once and never over another, read by range."""

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, BinaryIO

from botocore.exceptions import BotoCoreError, ClientError

from sinks.packs.layout import PackError
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.s3 import s3_client

logger = logging.getLogger(__name__)

SCHEME = "s3://"
_MISSING = {"NoSuchKey", "404", "NotFound"}
_OUT_OF_RANGE = {"InvalidRange", "416"}
_EXISTS = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}
_PART_BYTES = 8 << 20


class PackStore:
    """The content bucket.

    Args:
        config: address, credentials and bucket.

    Each method raises Unavailable when S3 does not answer after botocore's own retries.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self.bucket = config.content_bucket

    @cached_property
    def _client(self) -> Any:
        return s3_client(self._config)

    def name(self, key: str) -> str:
        """Return `s3://bucket/key`."""
        return f"{SCHEME}{self.bucket}/{key}"

    def put(self, key: str, body: BinaryIO, digest: bytes) -> None:
        """Write an object that must not exist yet.

        An answer that was lost makes botocore send the object a second time; what is then found
        to be there already is taken for ours if its digest is.

        Raises:
            PackError: another object is there.
        """
        try:
            self._client.put_object(
                Bucket=self.bucket,
                Key=key,
                Body=body,
                IfNoneMatch="*",
                ContentType="application/octet-stream",
            )
        except ClientError as error:
            if _code(error) not in _EXISTS:
                raise _unavailable(error) from error
            if self.digest(self.name(key)) != digest:
                raise PackError(f"{self.name(key)}: another object is there") from error
            logger.info("%s was there already, with the same digest", self.name(key))
        except BotoCoreError as error:
            raise _unavailable(error) from error

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return `length` bytes of an object from `offset` on, by one ranged GET.

        Raises:
            PackError: the object is missing or shorter.
        """
        if not length:
            return b""
        data = self._get(name, Range=f"bytes={offset}-{offset + length - 1}")
        if len(data) != length:
            raise PackError(f"{name}: {len(data)} of {length} bytes at {offset}")
        return data

    def read_all(self, name: str) -> bytes:
        """Return a whole object.

        Raises:
            PackError: it is missing.
        """
        return self._get(name)

    def digest(self, name: str) -> bytes:
        """Return the SHA-256 of a stored object, read in parts."""
        digest = hashlib.sha256()
        with _guard(name):
            for part in self._object(name)["Body"].iter_chunks(_PART_BYTES):
                digest.update(part)
        return digest.digest()

    def _get(self, name: str, **options: str) -> bytes:
        with _guard(name):
            data: bytes = self._object(name, **options)["Body"].read()
        return data

    def _object(self, name: str, **options: str) -> Any:
        bucket, key = _split(name)
        return self._client.get_object(Bucket=bucket, Key=key, **options)


@contextmanager
def _guard(name: str) -> Iterator[None]:
    """Turn botocore's errors into ours."""
    try:
        yield
    except ClientError as error:
        if _code(error) in _MISSING:
            raise PackError(f"{name}: the object is missing") from error
        if _code(error) in _OUT_OF_RANGE:
            raise PackError(f"{name}: the object is shorter than it should be") from error
        raise _unavailable(error) from error
    except BotoCoreError as error:
        raise _unavailable(error) from error


def _split(name: str) -> tuple[str, str]:
    bucket, _, key = name.removeprefix(SCHEME).partition("/")
    if not (name.startswith(SCHEME) and bucket and key):
        raise PackError(f"{name}: not the name of an object")
    return bucket, key


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _unavailable(error: ClientError | BotoCoreError) -> Unavailable:
    what = _code(error) if isinstance(error, ClientError) else type(error).__name__
    return Unavailable(f"S3 does not answer: {what}")
