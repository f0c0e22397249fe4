"""Small questions over a socket: does it connect, what does it answer."""

import http.client
import socket
from urllib.parse import urlsplit

PATIENCE_S = 1.0


def host_port(address: str, default_port: int = 80) -> tuple[str, int]:
    """Split an address with or without a scheme; of several, the first."""
    first = address.split(",")[0]
    parts = urlsplit(first if "://" in first else f"//{first}")
    return parts.hostname or "127.0.0.1", parts.port or default_port


def connects(address: str) -> bool:
    """Tell whether anything accepts a connection at one of the addresses."""
    return any(_connects(one) for one in address.split(",") if one)


def _connects(address: str) -> bool:
    default_port = 443 if address.startswith("https") else 80
    try:
        with socket.create_connection(host_port(address, default_port), timeout=PATIENCE_S):
            return True
    except (OSError, ValueError):
        return False


def http_ok(address: str, path: str) -> bool:
    """Tell whether a GET of `path` is answered with a 2xx status."""
    connection = http.client.HTTPConnection(*host_port(address), timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        return 200 <= connection.getresponse().status < 300
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def says(address: str, question: bytes, answer: bytes) -> bool:
    """Tell whether the server at an address answers `question` with `answer`."""
    try:
        with socket.create_connection(host_port(address), timeout=PATIENCE_S) as connection:
            connection.sendall(question)
            return connection.recv(len(answer)) == answer
    except OSError:
        return False
