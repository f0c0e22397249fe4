"""Run one worker: `python -m streams NAME`.

Crash-only: an error from a store ends a worker's work, and the process replaces itself by a fresh
one (same pid) after a back-off, so that what is in memory is always rebuilt from what is durable.
`TURNLOG_WORKER_RESTART=0` turns that off.
"""

import importlib
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

from streams.batch import Stopped
from turnlog.config import Config, load
from turnlog.errors import TurnlogError, UsageError

WORKERS = {
    "keeper": "streams.keeper:run",
    "conversations": "streams.conversations:run",
    "usage-sink": "streams.usage_sink:run",
    "runs-sink": "streams.runs_sink:run",
    "ingest-sink": "streams.ingest_sink:run",
    "locator": "streams.locator:run",
    "finalizer": "streams.finalizer:run",
}
BACK_OFF_S = (0.5, 10.0)
# A worker that ran this long before it crashed starts again at the shortest back-off.
STEADY_S = 60.0
RESTART = "TURNLOG_WORKER_RESTART"
ATTEMPT = "TURNLOG_WORKER_ATTEMPT"

logger = logging.getLogger("streams")


def main(arguments: list[str]) -> int:
    """Run the named worker until SIGTERM; 0 stopped, 1 gave up, 2 used wrongly."""
    if len(arguments) != 1 or arguments[0] not in WORKERS:
        print(f"usage: python -m streams {'|'.join(WORKERS)}", file=sys.stderr)
        return 2
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    return _work(arguments[0])


def _work(name: str) -> int:
    started = time.monotonic()
    crashed = True
    try:
        _run_function(name)(load())
        crashed = False
    except (Stopped, UsageError) as error:
        crashed = False
        logger.error("%s stays down: %s", name, error)
        return 2 if isinstance(error, UsageError) else 1
    except (KeyboardInterrupt, SystemExit):
        crashed = False
        raise
    except TurnlogError as error:
        logger.error("%s crashed: %s", name, error)
    finally:
        # Here, and not in a handler, so that it also holds for what nobody foresaw.
        if crashed and os.environ.get(RESTART) != "0":
            _say_where(name, sys.exc_info()[1])
            _start_again(time.monotonic() - started)
    return int(crashed)


def _run_function(name: str) -> Callable[[Config], None]:
    module, _, function = WORKERS[name].partition(":")
    run: Callable[[Config], None] = getattr(importlib.import_module(module), function)
    return run


def _say_where(name: str, error: BaseException | None) -> None:
    """Log an unforeseen error in one line, without its message, which might hold content."""
    if error is None:
        return
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown"
    logger.error("%s crashed: %s at %s", name, type(error).__name__, where)


def _start_again(ran_s: float) -> None:
    """Replace this process by a fresh one after a back-off; never returns."""
    # The worker's own handler would swallow a SIGTERM that arrives in the back-off.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    attempt = 0 if ran_s > STEADY_S else int(os.environ.get(ATTEMPT, "0"))
    time.sleep(min(BACK_OFF_S[0] * 2**attempt, BACK_OFF_S[1]))
    os.environ[ATTEMPT] = str(min(attempt + 1, 16))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit, which would wait for a thread whose store does not answer.
    os._exit(code)
