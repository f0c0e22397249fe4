"""The conversations worker: a Faust app folds `turnlog.turns` into two tables and a read model.

| module | what it does |
|---|---|
| `app` | the Faust app: settings, the agent, and what of Faust is replaced and why |
| `work` | the unit of work: folds records as they come, writes them a few at a time |
| `unit` | one partition's share of it |
| `state` | rows as the fold sees them: what is not written yet over what the tables hold |
| `writer` | writes outputs, then tables, in an order that makes a crash harmless |
| `tables` | the two tables: rows by partition, without Faust's own changelog writer |
| `worker` | the process around the app |
| `watch` | says when a worker no longer gets anywhere |
| `stored` | the view's own digest, read from the tables' changelogs |
| `rebuild` | one conversation folded again from the log, where Redis lost it |

This module is light: the command line asks it for a digest without importing Faust.
"""

from streams.views import named
from turnlog.config import Config

_ABOUT = named("conversations")
VIEW = _ABOUT.name
GROUP = _ABOUT.group
TOPICS = _ABOUT.topics
TABLE = _ABOUT.table

HEADS = "heads"
TURNS = "turns"
# The names that Faust gives to the changelogs of its tables; the app's id is the group.
HEADS_CHANGELOG = f"{GROUP}-{HEADS}-changelog"
TURNS_CHANGELOG = f"{GROUP}-{TURNS}-changelog"


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
