"""Our own workers: `python -m streams NAME`, told by environment what this stack's config says."""

import os
import sys
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from local.place import Place
from local.process import Launch, log_tail
from turnlog.config import PARTS, Config
from turnlog.proxy import past_proxy


def launch(place: Place, name: str) -> Launch:
    """Say how to start a worker."""
    # -P: a folder of the user's that happens to be called `streams` must not be imported.
    argv = [sys.executable, "-P", "-m", "streams", name]
    return Launch(argv, place.home, environment(place.config, dict(place.external)))


def environment(config: Config, external: dict[str, str]) -> dict[str, str]:
    """Return the variables that give another process this config.

    Addresses of local parts are left out: those it reads from the stack's home.
    """
    env = {"TURNLOG_HOME": str(config.home), "PYTHONUNBUFFERED": "1"}
    for name in sorted(config.model_fields_set - {"home", *PARTS}):
        env[f"TURNLOG_{name.upper()}"] = _text(getattr(config, name))
    for name in PARTS:
        env[f"TURNLOG_{name.upper()}"] = external.get(name, "")
    env |= past_proxy(os.environ)
    toml = os.environ.get("TURNLOG_CONFIG")
    if toml:
        env["TURNLOG_CONFIG"] = str(Path(toml).absolute())
    return env


def crashes(home: Path, name: str) -> int:
    """Return how many of the last lines of a worker's log say that it crashed.

    A worker that crashes replaces itself under the same pid, so that only its log tells.
    """
    return sum(" crashed: " in line for line in log_tail(home, name))


def is_failing(home: Path, name: str) -> bool:
    """Tell whether a worker crashed and has said nothing better since."""
    return " crashed: " in "".join(log_tail(home, name, lines=1))


def _text(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    # A relative path would be another one in the worker's own working directory.
    return str(value.absolute() if isinstance(value, Path) else value)
