"""The ClickHouse engine (chDB) as a process that speaks ClickHouse's HTTP interface.

chDB has no server and allows one process per path; this one owns the path and answers the stock
`clickhouse-connect` HTTP client, so that everyone uses one client here and in production.
"""

import sys

from local.place import Place
from local.probe import http_ok
from local.process import Launch


def launch(place: Place) -> Launch:
    """Say how to start the server."""
    cwd = place.folder("clickhouse")
    argv = [sys.executable, "-P", "-m", "local.clickhouse", str(place.ports["clickhouse"])]
    return Launch(argv, cwd, {"PYTHONUNBUFFERED": "1"})


def answers(address: str) -> bool:
    """Tell whether the engine has opened its data and serves."""
    return http_ok(address, "/ping")
