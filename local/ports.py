"""Ports of the local parts: chosen once, kept in `{home}/ports.json`, given up only when taken."""

import json
import random
import socket
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from local.process import replace
from turnlog.errors import Unavailable, UsageError

# Below the kernel's range for outgoing connections: a client that keeps trying a port of that
# range while its server is away can be given the very port and connect to itself.
_LOWEST = 14000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 2000
_LINGER_S = 2.0
_POLL_S = 0.05


def _highest() -> int:
    try:
        first = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError):
        return 32000
    return min(first, 49152) if first > _LOWEST + 2000 else 32000


def is_free(port: int) -> bool:
    """Tell whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do, so that a connection still in TIME_WAIT does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def listener(port: int) -> str:
    """Say who listens on a port, as far as this user may know; "" when nobody is seen."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                pid = connection.pid
                return f"{psutil.Process(pid).name()} (process {pid})" if pid else "another user"
    except psutil.Error:
        return "another process"
    return ""


def holder(port: int) -> str:
    """Say who keeps a port from being listened on; "" when it is free, or becomes so within 2 s.

    The connections of a server that has just been killed may hold its port for a moment.
    """
    deadline = time.monotonic() + _LINGER_S
    while not is_free(port):
        found = listener(port)
        if found or time.monotonic() > deadline:
            return found or "another process"
        time.sleep(_POLL_S)
    return ""


class Ports:
    """The kept ports of one stack, by name."""

    def __init__(self, home: Path) -> None:
        self.path = home / "ports.json"
        self.by_name = self._read()

    def _read(self) -> dict[str, int]:
        try:
            stored = json.loads(self.path.read_text())
            return {str(name): int(port) for name, port in stored.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            raise UsageError(f"{self.path} cannot be read: {error}") from error

    def choose(self, names: Iterable[str]) -> None:
        """Choose a port for each name that has none."""
        missing = [name for name in names if name not in self.by_name]
        for name in missing:
            self.by_name[name] = self._free_port()
        if missing:
            self._save()

    def move(self, name: str) -> int:
        """Give a name another port, because its own is taken."""
        self.by_name[name] = self._free_port()
        self._save()
        return self.by_name[name]

    def _free_port(self) -> int:
        used = set(self.by_name.values())
        for _ in range(_TRIES):
            port = random.randrange(_LOWEST, _highest())
            if port not in used and is_free(port):
                return port
        raise Unavailable(f"no free port between {_LOWEST} and {_highest()}")

    def _save(self) -> None:
        replace(self.path, json.dumps(self.by_name, indent=1, sort_keys=True))
