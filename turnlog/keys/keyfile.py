"""The local key file, which stands in for a KMS: 0600, JSON.

    {"version": 1, "master_key": "<64 hex>", "keeper_seed": "<64 hex>"}

`master_key` wraps the orgs' wrapping keys; `keeper_seed` is the seed of the keeper's Ed25519 key.
Whoever has the file and a copy of `turnlog.keys` can open everything that was not erased.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from turnlog.errors import UsageError

_MODE = 0o600


@dataclass(frozen=True, slots=True)
class KeyFile:
    """What a key file holds.

    Attributes:
        path: where it is.
        master_key: 32 bytes.
        signer: the keeper's signing key.
    """

    path: Path
    master_key: bytes = field(repr=False)
    signer: Ed25519PrivateKey = field(repr=False)

    @property
    def public_hex(self) -> str:
        """The keeper's public key, 64 hex digits."""
        return self.signer.public_key().public_bytes_raw().hex()


def create_key_file(path: Path) -> KeyFile:
    """Write a new key file with fresh keys; it must not exist.

    Raises:
        UsageError: it cannot be written.
    """
    keys = {name: os.urandom(32).hex() for name in ("master_key", "keeper_seed")}
    write_secret(path, {"version": 1, **keys})
    return load_key_file(path)


def load_key_file(path: Path) -> KeyFile:
    """Read a key file.

    Raises:
        UsageError: missing, readable by others, or not a key file; the message names the path.
    """
    value = read_secret(path, "key file")
    try:
        if value["version"] != 1:
            raise ValueError("version")
        master, seed = bytes.fromhex(value["master_key"]), bytes.fromhex(value["keeper_seed"])
        if len(master) != 32:
            raise ValueError("length")
        return KeyFile(path, master, Ed25519PrivateKey.from_private_bytes(seed))
    except (KeyError, TypeError, ValueError):
        # What the file holds is secret: nothing of it goes into the message.
        raise UsageError(f"key file {path} is not one of Turnlog's") from None


def write_secret(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object that only its owner may read, whole or not at all.

    Raises:
        UsageError: the file is there already or cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE), "w") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, a link refuses a file that is there.
        os.link(draft, path)
    except OSError as error:
        if path.exists():
            raise UsageError(f"{path} is there already") from None
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            draft.unlink()


def read_secret(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object that only its owner may read.

    Raises:
        UsageError: missing, readable by others, or not JSON; the message names the path.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(1 << 20)
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise UsageError(f"{what} {path} can be read by others: run `chmod 600` on it")
    try:
        value = json.loads(data)
    except ValueError:
        raise UsageError(f"{what} {path} is not JSON") from None
    if not isinstance(value, dict):
        raise UsageError(f"{what} {path} is not a JSON object")
    return value
