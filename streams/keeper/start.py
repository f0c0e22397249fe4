"""Starting the keeper: which key file, whose partitions, which files it leaves for others."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor

from streams.keeper.directory import Directory, Known
from streams.keeper.partition import TOPIC, take_over
from streams.keeper.service import HEARTBEAT_KEY, Keeper
from turnlog.config import Config
from turnlog.errors import UsageError
from turnlog.kafka import partitions_of, read_all
from turnlog.keeper_client import (
    ADMIN_FILE,
    Credential,
    credential_path,
    load_credential,
    new_token,
    public_key_path,
    save_credential,
)
from turnlog.keys.keyfile import KeyFile, create_key_file, load_key_file
from turnlog.keys.kms import LocalKms
from turnlog.keys.orgkeys import check_keys, is_wrapping_row

logger = logging.getLogger(__name__)

DEFAULT_ORG, DEFAULT_PROJECT = "local", "default"


def start(config: Config, topic: str = TOPIC) -> tuple[Keeper, Credential]:
    """Take over every partition and make what a first start makes; return the admin's credential.

    Raises:
        UsageError: the key file is missing, cannot be used, or is not that of the rows.
        Fenced: another keeper started in this moment.
        Unavailable: Kafka does not answer.
    """
    key_file = _key_file(config, topic)
    numbers = partitions_of(config, topic)
    with ThreadPoolExecutor(max_workers=min(16, len(numbers))) as pool:
        partitions = list(pool.map(lambda number: take_over(config, number, topic), numbers))
    keeper = Keeper(
        dict(zip(numbers, partitions, strict=True)),
        Directory.load(config),
        LocalKms(key_file),
        key_file,
        retention_class=config.retention_class,
    )
    _publish(config, key_file)
    _first_org(config, keeper)
    minted = keeper.mint()
    logger.info("%d partitions, %d days minted", len(numbers), minted.days)
    return keeper, _admin(config)


def _key_file(config: Config, topic: str) -> KeyFile:
    """Return the key file, checked against the rows before anyone is fenced for it.

    A new one is made only for a topic without rows: beside rows it would open none of them.
    """
    path = config.local_key_file
    wrapping, empty = _wrapping_row(config, topic)
    if not path.exists() and empty:
        logger.info("key file %s is new: keep a copy of it", path)
        return create_key_file(path)
    if not path.exists():
        raise UsageError(
            f"key file {path} is missing, but turnlog.keys holds rows that only it opens:"
            " put it back"
        )
    key_file = load_key_file(path)
    public, where = key_file.signer.public_key(), f"the one in key file {path}"
    check_keys(wrapping, LocalKms(key_file), public, where)
    if config.keeper_public not in ("", key_file.public_hex):
        raise UsageError(f"config field keeper_public is not the key in key file {path}")
    return key_file


def _wrapping_row(config: Config, topic: str) -> tuple[dict[bytes, bytes], bool]:
    """Return some org's wrapping key's row, and whether there is no row at all."""
    empty = True
    for message in read_all(config, topic):
        key, value = message.key() or b"", message.value()
        empty = empty and key == HEARTBEAT_KEY
        if value is not None and is_wrapping_row(key):
            return {key: value}, False
    return {}, empty


def _publish(config: Config, key_file: KeyFile) -> None:
    path = public_key_path(config)
    if path.exists() and path.read_text().strip() == key_file.public_hex:
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(key_file.public_hex + "\n")
    draft.replace(path)


def _admin(config: Config) -> Credential:
    path = config.credentials / ADMIN_FILE
    if not path.exists():
        save_credential(path, Credential((), new_token()))
    return load_credential(path)


def _first_org(config: Config, keeper: Keeper) -> None:
    """Create the local org, whose credential file is made here: nobody else runs a command yet."""
    path = credential_path(config, DEFAULT_ORG)
    held = path.exists()
    credential = load_credential(path) if held else Credential((DEFAULT_ORG,), new_token())
    keeper.create(DEFAULT_ORG, DEFAULT_PROJECT, Known(credential.id, credential.digest))
    if not held:
        save_credential(path, credential)
