"""What this machine has and lacks for the local stack, and how to get it."""

import os
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from local import kafka, probe, seaweed, valkey
from local.kafka import jars
from local.stack import external_addresses
from turnlog.config import Config
from turnlog.errors import NotInstalled, TurnlogError, Unavailable

_INSTALL_JAVA = "install Java 17 or newer (Debian: openjdk-17-jre-headless)"
_SET_UP = "install the project's locked dependencies: make setup"
_PYTHON = (3, 11)
_FILES = 4096
_FREE_BYTES = 2 << 30


class Finding(NamedTuple):
    """One thing that was looked at."""

    check: str
    ok: bool
    found: str
    remedy: str


def examine(config: Config) -> list[Finding]:
    """Look at everything that the local stack needs."""
    looks: list[tuple[str, Callable[[], Finding]]] = [
        ("kafka", lambda: _found("java", kafka.java_version, _INSTALL_JAVA)),
        ("kafka", lambda: _kafka(config.home)),
        ("s3", lambda: _found("s3", seaweed.binary, _SET_UP)),
        ("redis", lambda: _found("redis", valkey.binary, _SET_UP)),
        ("clickhouse", lambda: _found("clickhouse", _chdb, _SET_UP)),
    ]
    external = external_addresses(config)
    parts = [look() for part, look in looks if part not in external]
    parts += [_external(name, address) for name, address in external.items()]
    return [_python(), *parts, _home(config.home), _disk(config.home), _files()]


def _external(name: str, address: str) -> Finding:
    ok = probe.connects(address)
    remedy = "" if ok else f"start it, or unset TURNLOG_{name.upper()}"
    found = "answers at the address given" if ok else "does not answer at the address given"
    return Finding(name, ok, found, remedy)


def _found(check: str, look: Callable[[], str], remedy: str) -> Finding:
    try:
        return Finding(check, True, look(), "")
    except TurnlogError as error:
        return Finding(check, False, str(error), remedy)


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info >= _PYTHON
    return Finding("python", ok, found, "" if ok else "install Python 3.11 or newer")


def _kafka(home: Path) -> Finding:
    folder = jars.find(home)
    if folder is not None:
        return Finding("kafka", True, f"{jars.version()} ({folder})", "")
    remedy = "turnlog doctor --fetch"
    try:
        jars.maven()
    except Unavailable:
        remedy = f"install Maven (Debian: maven), then {remedy}"
    return Finding("kafka", False, f"{jars.version()} was not fetched yet", remedy)


def _chdb() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"chDB {version('chdb')}"
    except PackageNotFoundError as error:
        raise NotInstalled("chDB is not installed") from error


def _home(home: Path) -> Finding:
    at = _nearest(home)
    ok = os.access(at, os.W_OK | os.X_OK)
    remedy = "" if ok else f"set TURNLOG_HOME to a folder that you may write to; {at} is not"
    return Finding("home", ok, str(home), remedy)


def _nearest(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _disk(home: Path) -> Finding:
    free = shutil.disk_usage(_nearest(home)).free
    ok = free >= _FREE_BYTES
    remedy = "" if ok else "free 2 GiB, or set TURNLOG_HOME to another disk"
    return Finding("disk", ok, f"{free >> 20} MiB free", remedy)


def _files() -> Finding:
    # The hard limit: `up` raises the soft one by itself.
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    unlimited = limit == resource.RLIM_INFINITY
    ok = unlimited or limit >= _FILES
    found = "no limit" if unlimited else f"{limit} open files"
    return Finding("files", ok, found, "" if ok else f"ulimit -H -n {_FILES}")
