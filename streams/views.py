"""The views that are kept up to date, as data: who folds what from where into what.

Light on purpose: `turnlog status` and `turnlog wait` read it without importing a single worker.
"""

from typing import NamedTuple

ARCHIVED = (
    "turnlog.runs",
    "turnlog.turns",
    "turnlog.usage",
    "turnlog.billing",
    "turnlog.erasures",
)


class View(NamedTuple):
    """One view.

    Attributes:
        name: what people call it.
        worker: the process that folds it, as in `turnlog up WORKER`.
        group: the consumer group whose committed offsets are the view's durable position.
        topics: what it is folded from.
        table: where its rows are.
        module: the module whose `digest(config)` reads those rows.
    """

    name: str
    worker: str
    group: str
    topics: tuple[str, ...]
    table: str
    module: str


VIEWS = (
    View(
        "conversations",
        "conversations",
        "turnlog-conversations",
        ("turnlog.turns",),
        "turnlog-conversations-turns-changelog",
        "streams.conversations",
    ),
    View(
        "runs",
        "runs-sink",
        "turnlog.runs-sink",
        ("turnlog.runs",),
        "turnlog.runs",
        "streams.runs_sink",
    ),
    View(
        "usage",
        "usage-sink",
        "turnlog.usage-sink",
        ("turnlog.usage",),
        "turnlog.usage",
        "streams.usage_sink",
    ),
    View(
        "packs",
        "ingest-sink",
        "turnlog.ingest-sink",
        ARCHIVED,
        "s3://{content_bucket}/ingest/",
        "streams.ingest_sink",
    ),
    View(
        "locator",
        "locator",
        "turnlog.locator",
        ("turnlog.packs",),
        "turnlog.locator",
        "streams.locator",
    ),
)


NAMES = tuple(view.name for view in VIEWS)


def named(name: str) -> View:
    """Return a view by its name.

    Raises:
        ValueError: there is none.
    """
    return VIEWS[NAMES.index(name)]
