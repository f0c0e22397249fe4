"""What an operator may see of key trees: how they stand, and what is gone; never a key."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from serve.identified import identified
from serve.puncture_api import Aiming
from streams.keys_reader import KeyReader
from turnlog.config import Config
from turnlog.errors import Erased, KeyUnavailable, NotFound, NoTree
from turnlog.ids import require_id
from turnlog.keeper_client import credential_of
from turnlog.keys import Locator, Subject
from turnlog.keys.rows import LINK
from turnlog.keys.targets import LEVELS, Target
from turnlog.keys.tree import StoredTree, entry_of

_LEVEL_AT = {length - 1: level for level, length in LEVELS.items()}
_OTHER = "other"
_NONE: Mapping[str, int] = {}
_KEYS = {"request": "q", "response": "o"}


def tree_states(config: Config, org: str, project: str) -> Iterator[dict[str, Any]]:
    """Yield the trees of a project, oldest first, each with its days.

    Yields:
        `{project, retention_class, month, tree, generation, minted_through, pages, nodes, days}`;
        a day is `{day, state, pages, nodes, erased}`, where state is `whole`, `punctured`, `gone`
        (erased whole, or never minted because nobody kept keys then) or `not minted`, and erased
        counts erased prefixes by level.

    Raises:
        UsageError: an id is none, or there is no credential for the org here.
        KeyUnavailable: a row is missing or does not open.
        Unavailable: Kafka does not answer.
    """
    require_id(project, "project")
    credential_of(config, org)
    with KeyReader(config, [org]) as keys:
        for found, month, stored in keys.trees(org):
            if found.project == project:
                head, size = stored.head, stored.size()
                yield {
                    "project": project,
                    "retention_class": found.retention_class,
                    "month": month,
                    "tree": stored.tree.hex(),
                    "generation": head.gen,
                    "minted_through": head.minted_through,
                    "pages": size.pages,
                    "nodes": size.nodes,
                    "days": list(_days(stored)),
                }


def _days(stored: StoredTree) -> Iterator[dict[str, Any]]:
    top = stored.page(b"", stored.head.page_key)
    for day in range(1, stored.head.minted_through + 1):
        found = entry_of(top, day)
        if found is None:
            yield _day(day, "gone")
        elif found[0] != LINK:
            yield _day(day, "whole", nodes=1)
        else:
            erased: Counter[str] = Counter()
            _count(stored, bytes((day,)), top[found], erased)
            size = stored.size(bytes((day,)), top[found])
            yield _day(day, "punctured", size.pages, size.nodes, erased)


def _day(
    day: int, state: str, pages: int = 0, nodes: int = 0, erased: Mapping[str, int] = _NONE
) -> dict[str, Any]:
    counts = {level: erased[level] for level in (*LEVELS, _OTHER) if level in erased}
    return {"day": day, "state": state, "pages": pages, "nodes": nodes, "erased": counts}


def _count(stored: StoredTree, prefix: bytes, page_key: bytes, erased: Counter[str]) -> None:
    """Count the bytes of a page and of those below it that nothing covers: each was a puncture."""
    entries = stored.page(prefix, page_key)
    covered = sum(1 if n == LINK else 256 >> n for n, _ in entries)
    if covered < 256:
        erased[_LEVEL_AT.get(len(prefix), _OTHER)] += 256 - covered
    for (n, v), value in entries.items():
        if n == LINK:
            _count(stored, prefix + bytes((v,)), value, erased)


def run_state(config: Config, org: str, project: str, run: str) -> dict[str, Any]:
    """Return how the keys of a run stand, in every place where the view `runs` has seen it.

    Returns:
        `{run, places}`; a place is `{tree, day, gen, request, response}`, and a key is `alive`,
        `erased` or `unavailable`.

    Raises:
        UsageError: an id is none, or there is no credential for the org here.
        NotFound: there is no such run in the project.
        Unavailable: a part does not answer.
    """
    require_id(project, "project")
    credential_of(config, org)
    with KeyReader(config, [org]) as keys:
        aiming = Aiming(config, keys, org, project)
        id_ = identified(config, org, "run", run)
        places = [_place(keys, org, target) for target in aiming.places("run", id_)]
    if not places:
        raise NotFound(f"run {run}: not found")
    return {"run": id_, "places": places}


def _place(keys: KeyReader, org: str, target: Target) -> dict[str, Any]:
    locator = Locator(target.tree, target.day, target.gen)
    subject = Subject(org, target.user, target.conversation, target.subject, "o")
    states = {
        name: _state(keys, locator, subject._replace(kind=kind)) for name, kind in _KEYS.items()
    }
    return {"tree": target.tree.hex(), "day": target.day, "gen": target.gen, **states}


def _state(keys: KeyReader, locator: Locator, subject: Subject) -> str:
    try:
        keys.data_key(locator, subject)
    except Erased:
        return "erased"
    except (KeyUnavailable, NoTree):
        return "unavailable"
    return "alive"
