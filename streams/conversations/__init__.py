"""The conversations worker: a Faust app folds `turnlog.turns` into two tables and a read model.

| module | what it does |
|---|---|
| `app` | the Faust app: settings, the agent, and what of Faust is replaced and why |
| `state` | rows as the fold sees them: what is not written yet over what the tables hold |
| `unit` | the unit of work: folds events, then writes outputs, tables and positions in that order |
| `tables` | the two tables: rows by partition, without Faust's own changelog writer |
| `watch` | ends a worker that no longer gets anywhere |
| `stored` | the view's own digest, read from the tables' changelogs |

This module is light: the command line asks it for a digest without importing Faust.
"""

from streams.views import named
from turnlog.config import Config

_ABOUT = named("conversations")
VIEW = _ABOUT.name
GROUP = _ABOUT.group
TOPICS = _ABOUT.topics
TABLE = _ABOUT.table


def run(config: Config) -> None:
    """Fold until SIGTERM.

    Raises:
        Unavailable: a store did not answer or the worker got stuck; a fresh process may go on.
        Stopped: something that only a person can mend.
    """
    from streams.conversations.worker import Worker

    Worker(config).run()


def digest(config: Config) -> tuple[int, str]:
    """Return how many events the view holds and its digest.

    Raises:
        Unavailable: Kafka does not answer.
    """
    from streams.conversations.stored import digest as of_tables

    return of_tables(config)
