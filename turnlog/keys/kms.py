"""What wraps the orgs' wrapping keys: a local key file, or AWS KMS."""

import os
from typing import Any, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from turnlog.errors import KeyUnavailable, Unavailable, UsageError
from turnlog.keys.expand import expand, lp
from turnlog.keys.keyfile import KeyFile
from turnlog.keys.rows import WrappedKey

_NONCE_BYTES = 12


class Kms(Protocol):
    """Wraps and unwraps the keys of orgs.

    Attributes:
        name: names the key in use, in every row that it wrapped; tells nothing of the key.
        where: where that key is, for messages.
    """

    name: str
    where: str

    def wrap(self, org: str, version: int, key: bytes) -> bytes:
        """Return the key encrypted, bound to org and version."""
        ...

    def unwrap(self, org: str, version: int, blob: bytes) -> bytes:
        """Return the key again.

        Raises:
            KeyUnavailable: not wrapped by this key for this org and version.
            Unavailable: the KMS does not answer.
        """
        ...


def unwrapped(kms: Kms, org: str, wrapped: WrappedKey) -> bytes:
    """Return an org's wrapping key.

    Raises:
        UsageError: another key wrapped it, so this process was given the wrong one.
        KeyUnavailable: the row does not open.
        Unavailable: the KMS does not answer.
    """
    if wrapped.kms != kms.name:
        raise UsageError(
            f"{kms.where} is not the key that turnlog.keys was written with: its rows name"
            f" {wrapped.kms}, this is {kms.name}"
        )
    return kms.unwrap(org, wrapped.version, wrapped.blob)


class LocalKms:
    """AES-256-GCM under the master key of a local key file."""

    def __init__(self, file: KeyFile) -> None:
        self.where = f"key file {file.path}"
        self.name = "local:" + expand(file.master_key, b"turnlog/kms-name/v1", b"", 8).hex()
        self._aead = AESGCM(expand(file.master_key, b"turnlog/kms-wrap/v1", b""))

    def wrap(self, org: str, version: int, key: bytes) -> bytes:
        """Return nonce, ciphertext and tag."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, key, _context(org, version))

    def unwrap(self, org: str, version: int, blob: bytes) -> bytes:
        """Return the key.

        Raises:
            KeyUnavailable: not wrapped by this key for this org and version.
        """
        nonce, sealed = blob[:_NONCE_BYTES], blob[_NONCE_BYTES:]
        try:
            return self._aead.decrypt(nonce, sealed, _context(org, version))
        except (InvalidTag, ValueError):
            raise KeyUnavailable(f"the wrapping key of org {org} does not open") from None


def _context(org: str, version: int) -> bytes:
    return b"turnlog-kek-v1\0" + lp(org.encode()) + version.to_bytes(4, "big")


class AwsKms:
    """AWS KMS through boto3; tried against the shapes of its requests and answers, not against AWS.

    One call per org and five minutes, whatever the event rate.
    """

    def __init__(self, key_arn: str, client: Any) -> None:
        self.where = f"KMS key {key_arn}"
        self.name = f"aws:{key_arn}"
        self._arn = key_arn
        self._client = client

    def wrap(self, org: str, version: int, key: bytes) -> bytes:
        """Return KMS's ciphertext.

        Raises:
            Unavailable: KMS does not answer.
        """
        answer = self._call("encrypt", org, version, Plaintext=key)
        return bytes(answer["CiphertextBlob"])

    def unwrap(self, org: str, version: int, blob: bytes) -> bytes:
        """Return the key.

        Raises:
            KeyUnavailable: KMS refuses: another key, org or version, or no permission.
            Unavailable: KMS does not answer.
        """
        answer = self._call("decrypt", org, version, CiphertextBlob=blob)
        return bytes(answer["Plaintext"])

    def _call(self, verb: str, org: str, version: int, **fields: bytes) -> Any:
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
        )

        context = {"turnlog": "kek-v1", "org": org, "version": str(version)}
        try:
            return getattr(self._client, verb)(KeyId=self._arn, EncryptionContext=context, **fields)
        except ClientError as error:
            reason = error.response["Error"]["Code"]
            raise KeyUnavailable(
                f"{self.where} refused to {verb} for org {org}: {reason}"
            ) from None
        except BotoCoreError as error:
            raise Unavailable(f"{self.where} does not answer: {type(error).__name__}") from None
