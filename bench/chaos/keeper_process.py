"""`python -m bench.chaos.keeper_process TOPIC DAYS`: the keeper, on a topic and a date of its own.

The door, the service and the transactions are the real ones. DAYS is a file that holds how many
days the keeper's clock is ahead, so that there is something to mint.
"""

import asyncio
import logging
import sys
from pathlib import Path
from urllib.parse import urlsplit

from streams.batch import Stopped
from streams.keeper.door import Door
from streams.keeper.start import start
from streams.keeper.worker import serve
from turnlog.config import load
from turnlog.keys.grant import now_us

DAY_US = 86_400_000_000


def main(topic: str, days: Path) -> int:
    """Keep keys until SIGTERM, or until another keeper takes over: then 1."""
    logging.basicConfig(level=logging.INFO)
    config = load()
    parts = urlsplit(config.need("keeper"))
    try:
        keeper, admin = start(config, topic)
        keeper.clock_us = lambda: now_us() + int(days.read_text()) * DAY_US
        door = Door(keeper, admin.digest, asyncio.Event())
        asyncio.run(serve(door, parts.hostname or "", parts.port or 0))
    except Stopped as error:
        logging.getLogger("keeper").error("the keeper stays down: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
