"""What people ask about views: how far they are, and whether they have caught up."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from streams.dead import dead_counts
from streams.progress import Offsets, Progress
from streams.views import VIEWS, View
from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.kafka import client_settings, unavailable

logger = logging.getLogger(__name__)

POLL_S = 0.1
THERE_S = 2.0
"""How long Kafka may take to say that it is there."""
# The locator reads what the ingest sink writes: it can be at the end only after packs is.
FED_BY = {"locator": "packs"}


def view_states(config: Config) -> list[dict[str, Any]]:
    """Return `{view, lag_events, lag_s, dead, table}` of each view.

    Lag and dead letters are null where Kafka does not answer: unknown is not zero. It is asked
    first whether it is there: each of the questions below is as patient as a reader of the log.
    """
    try:
        require_kafka(config)
        progress = Progress(config)
        dead = dead_counts(config)
        lags = {view.name: progress.lag(view) for view in VIEWS}
    except Unavailable as error:
        logger.info("views cannot be asked: %s", error)
        return unknown_states(config)
    return [
        _state(config, v, lags[v.name].events, lags[v.name].seconds, dead.get(v.name, 0))
        for v in VIEWS
    ]


def unknown_states(config: Config) -> list[dict[str, Any]]:
    """Return what `view_states` does where Kafka does not answer."""
    return [_state(config, view, None, None, None) for view in VIEWS]


def require_kafka(config: Config) -> None:
    """Do nothing where Kafka answers; a question that it never heard is waited for much longer.

    Raises:
        UsageError: it has no address.
        Unavailable: it does not.
    """
    try:
        AdminClient(client_settings(config)).list_topics("turnlog.runs", timeout=THERE_S)
    except KafkaException as error:
        raise unavailable(error) from error


def wait_for(
    config: Config,
    names: Sequence[str] | None = None,
    timeout_s: float = 60.0,
    on_progress: Callable[[Mapping[str, int]], None] = lambda behind: None,
) -> dict[str, int]:
    """Wait until the views have reached the ends of their topics as they were at the call.

    Args:
        config: where Kafka is.
        names: the views to wait for, all when None. `locator` waits for `packs` too.
        timeout_s: seconds after which the wait gives up.
        on_progress: called with `{view: events behind}` each time positions were read.

    Returns:
        `{view: events behind}` of the views that did not get there; empty when all did.

    Raises:
        Unavailable: Kafka did not answer until the time was up.
    """
    wanted = [view for view in VIEWS if names is None or view.name in names]
    waiting = _Waiting(config, wanted)
    deadline = time.monotonic() + timeout_s
    while True:
        behind = waiting.behind()
        on_progress(behind)
        if not behind or time.monotonic() >= deadline:
            return behind
        time.sleep(POLL_S)


class _Waiting:
    """The ends noted at the call, and who has not reached them yet."""

    def __init__(self, config: Config, views: Sequence[View]) -> None:
        self._progress = Progress(config)
        feeders = {FED_BY[view.name] for view in views if view.name in FED_BY}
        self._feeders = [v for v in VIEWS if v.name in feeders and v not in views]
        self._views = list(views)
        self._ends: dict[str, Offsets] = {
            view.name: self._progress.ends(view.topics)
            for view in [*self._views, *self._feeders]
            if view.name not in FED_BY
        }

    def behind(self) -> dict[str, int]:
        """Return events behind of each view that is; a view that has arrived is not asked again."""
        lags = {v.name: self._lag(v) for v in [*self._feeders, *self._views] if self._open(v)}
        for name, lag in lags.items():
            if not lag and name not in FED_BY:
                self._ends[name] = {}
        fed = self._fed(lags)
        wanted = {view.name for view in self._views}
        return {name: lag for name, lag in (lags | fed).items() if lag and name in wanted}

    def _fed(self, lags: Mapping[str, int]) -> dict[str, int]:
        """A fed view is behind by what its feeder still holds back, then by its own topic."""
        found = {}
        for view in self._views:
            feeder = FED_BY.get(view.name)
            if feeder and lags.get(feeder):
                found[view.name] = lags[feeder]
            elif feeder:
                self._ends.setdefault(view.name, self._progress.ends(view.topics))
                found[view.name] = self._lag(view)
        return found

    def _open(self, view: View) -> bool:
        return view.name not in FED_BY and bool(self._ends[view.name])

    def _lag(self, view: View) -> int:
        behind = self._progress.behind(view, self._ends[view.name])
        return sum(end - position for position, end in behind.values())


def _state(
    config: Config, view: View, events: int | None, seconds: float | None, dead: int | None
) -> dict[str, Any]:
    table = view.table.format(content_bucket=config.content_bucket)
    return {
        "view": view.name,
        "lag_events": events,
        "lag_s": seconds,
        "dead": dead,
        "table": table,
    }
