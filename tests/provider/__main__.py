"""`python -m tests.provider --port N`: the local provider in a process of its own.

It prints one JSON object with its port and URL, and serves until SIGTERM or Ctrl-C.
`GET /__asked` lists what it was asked, without bodies and without header values.
"""

import asyncio
import signal
import sys
from argparse import ArgumentParser
from pathlib import Path

import orjson

from tests.provider import Provider, Recordings


async def _serve(port: int, files: list[Path]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Provider.serving(Recordings.read(*files), port) as provider:
        said = {"port": provider.port, "url": provider.url()}
        sys.stdout.write(orjson.dumps(said).decode() + "\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> None:
    """Read the command line and serve."""
    parser = ArgumentParser(prog="python -m tests.provider", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: one that is free")
    parser.add_argument("--file", type=Path, action="append", default=[], help="of exchanges")
    given = parser.parse_args()
    asyncio.run(_serve(given.port, given.file))


if __name__ == "__main__":
    main()
