"""The key keeper: creates orgs, mints days, hands out grants, and writes every key row."""

from turnlog.config import Config


def run(config: Config) -> None:
    """Work until SIGTERM; see `streams.keeper.worker`.

    Imported when it runs: readers use `streams.keeper.state`, and must not pay for a web server.
    """
    from streams.keeper.worker import run as work

    work(config)
