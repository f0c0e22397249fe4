"""The two buckets: content, where deleting deletes, and audit, where nothing can be deleted."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local.process import replace
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.s3 import s3_client

if TYPE_CHECKING:
    from botocore.exceptions import ClientError


def ensure(config: Config) -> None:
    """Create the buckets that are missing.

    The content bucket has neither versions nor locks, so that no shadow copy of an erased object
    stays; the audit bucket has both.

    Raises:
        Unavailable: the store does not answer, refuses the key, or has a bucket of another form.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    s3 = s3_client(config, read_timeout_s=30, attempts=5)
    try:
        _ensure_one(s3, config.content_bucket, locked=False)
        _ensure_one(s3, config.audit_bucket, locked=True)
    except (BotoCoreError, ClientError) as error:
        raise Unavailable(f"buckets at {config.s3}: {error}") from error
    finally:
        s3.close()
    replace(*_note(config))


def _note(config: Config) -> tuple[Path, str]:
    noted = [config.need("s3"), config.content_bucket, config.audit_bucket]
    # Beside the data of the local store: gone together with them.
    return config.home / "s3" / "buckets.json", json.dumps(noted)


def known(config: Config) -> bool:
    """Tell whether `ensure` found these buckets at this address before: buckets do not go away."""
    path, noted = _note(config)
    return path.exists() and path.read_text() == noted


def _ensure_one(s3: Any, name: str, *, locked: bool) -> None:
    from botocore.exceptions import ClientError

    try:
        s3.create_bucket(Bucket=name, ObjectLockEnabledForBucket=locked)
    except ClientError as error:
        if _code(error) not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
            raise
    versioned = s3.get_bucket_versioning(Bucket=name).get("Status", "Disabled")
    if (versioned == "Enabled") != locked:
        wanted = "versioning and Object Lock" if locked else "no versioning"
        raise Unavailable(f"bucket {name} needs {wanted}, but its versioning is {versioned}")


def _code(error: "ClientError") -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
