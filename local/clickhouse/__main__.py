"""`python -m local.clickhouse PORT`: serve the engine's data in the working directory."""

import asyncio
import logging
import signal
import sys

from aiohttp import web

from local.clickhouse.engine import Engine
from local.clickhouse.server import application
from turnlog.places import log_places_only

logger = logging.getLogger(__name__)

# Relative: a path that the user chose could hold what chDB reads as options.
_DATA = "data"
_LAST_ANSWERS_S = 10.0


async def serve(port: int) -> None:
    """Serve on 127.0.0.1 until SIGTERM, then let what runs come to its end."""
    log_places_only()
    engine = Engine(_DATA)
    runner = web.AppRunner(
        application(engine),
        access_log=None,
        shutdown_timeout=_LAST_ANSWERS_S,
        auto_decompress=False,
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    logger.warning("engine %s serves on 127.0.0.1:%d", engine.version, port)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await runner.cleanup()
    engine.close()


def main() -> None:
    """Entry point of the process."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
