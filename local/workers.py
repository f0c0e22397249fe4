"""Our own workers: `python -m streams NAME`, told by environment what this stack's config says."""

import os
import sys
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from local.process import Launch
from local.site import Site
from turnlog.config import PARTS, Config


def launch(site: Site, name: str) -> Launch:
    """Say how to start a worker."""
    # -P: a folder of the user's that happens to be called `streams` must not be imported.
    argv = [sys.executable, "-P", "-m", "streams", name]
    return Launch(argv, site.home, environment(site.config, dict(site.external)))


def environment(config: Config, external: dict[str, str]) -> dict[str, str]:
    """Return the variables that give another process this config.

    Addresses of local parts are left out: those it reads from the stack's home.
    """
    env = {"TURNLOG_HOME": str(config.home), "PYTHONUNBUFFERED": "1"}
    for name in config.model_fields_set - {"home", *PARTS}:
        env[f"TURNLOG_{name.upper()}"] = _text(getattr(config, name))
    for name in PARTS:
        env[f"TURNLOG_{name.upper()}"] = external.get(name, "")
    toml = os.environ.get("TURNLOG_CONFIG")
    if toml:
        env["TURNLOG_CONFIG"] = str(Path(toml).absolute())
    return env


def _text(value: Any) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
