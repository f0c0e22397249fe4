"""Punctures as an operator asks for them: a run, a conversation, a user or a day, and what it hits.

The prefixes are listed from the view `runs`, which holds the key locator of each event, once it has
passed the log's end as it was at the call. Turns and artefacts that belong to no run are not in it;
erasing those, and what repeats them, is the erasure saga's work and not a puncture's.

What an org may erase comes from the credentials that lie here: the org's, to be shown anything of
it, and the admin's, to have the keeper write.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Literal, NamedTuple

from serve.identified import identified
from serve.views import wait_for
from sinks.clickhouse.client import ClickHouse
from streams.keeper.minting import days_in
from streams.keys_reader import KeyReader
from turnlog import keeper_client
from turnlog.config import Config
from turnlog.errors import Erased, NotFound, NoTree, Unavailable, UsageError
from turnlog.ids import is_id, require_id
from turnlog.keeper_client import credential_of, credential_path
from turnlog.keys import Locator, Subject
from turnlog.keys.targets import Target

Kind = Literal["run", "conversation", "user", "history-of", "day"]
# What the value of a selector is an id of; a client's own value of that kind becomes such an id.
_ID_KINDS = {"run": "run", "conversation": "conversation", "user": "user", "history-of": "user"}
WAIT_S = 60.0
TARGETS_A_CALL = 1_000
"""At most 33,000 rows and 17 MB; more are several calls."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = timedelta(days=1)


class Selector(NamedTuple):
    """What an operator names: which kind of thing, and which one."""

    kind: Kind
    value: str


class Aim(NamedTuple):
    """What a selector stands for now.

    Attributes:
        targets: what the keeper is asked to puncture, no place twice.
        runs: how many runs lie under them.
    """

    targets: list[Target]
    runs: int


def aim(config: Config, org: str, project: str, what: Selector, wait_s: float = WAIT_S) -> Aim:
    """Return the places of all that a selector names, as the log is at the call.

    Raises:
        UsageError: an id or the day is none, or there is no stack here.
        NotFound: there is no such run, conversation, user or day in the project, it is another
            org's, or the run was erased; these are told apart nowhere.
        KeyUnavailable: keys cannot be read now: retry.
        Unavailable: a part does not answer, or the view is behind.
    """
    require_id(project, "project")
    missing = NotFound(f"{_ID_KINDS.get(what.kind, what.kind)} {what.value}: not found")
    config.require_home()
    if not is_id(org) or not credential_path(config, org).exists():
        raise missing
    credential_of(config, org)
    _caught_up(config, wait_s)
    with KeyReader(config, [org]) as keys:
        found = Aiming(config, keys, org, project).aim(what)
    if not found.targets:
        raise missing
    return found


def puncture(
    config: Config,
    org: str,
    project: str,
    targets: Sequence[Target],
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[dict[str, Any]]:
    """Have the keeper puncture the targets; returns one answer a prefix, as it gives them.

    Raises:
        UsageError: there is no admin credential here.
        NotFound: a target's tree is not one of the project's.
        KeyUnavailable: a target's day is not minted.
        Unavailable: the keeper does not answer; asking again does what is left.
    """
    punctures = []
    by_tree = sorted(targets, key=lambda target: target.tree)
    for at in range(0, len(by_tree), TARGETS_A_CALL):
        some = by_tree[at : at + TARGETS_A_CALL]
        punctures += keeper_client.puncture(config, org, project, some)
        on_progress(at + len(some))
    return punctures


def _caught_up(config: Config, wait_s: float) -> None:
    behind = wait_for(config, ["runs"], wait_s)
    for view, events in behind.items():
        raise Unavailable(
            f"view {view} is {events} events behind after {wait_s:.0f} s; nothing was punctured"
        )


_PLACES = """
SELECT DISTINCT {columns}
FROM {database}.runs
WHERE org = {{org:String}} AND project = {{project:String}} AND key_day > 0 AND {where}
ORDER BY {columns}
"""
_COUNT = """
SELECT uniqExact(run)
FROM {database}.runs
WHERE org = {{org:String}} AND project = {{project:String}} AND key_day > 0 AND {where}
"""
# A month whose tree was missing: its runs have the last day of an older month as their day. They
# are punctured one by one, because that day is others' too.
_ELSEWHERE = """
SELECT DISTINCT hex(key_tree), key_day, user, key_gen, conversation, run
FROM {database}.runs
WHERE org = {{org:String}} AND project = {{project:String}} AND type = 'run.created'
    AND occurred_at_us >= {{begin:Int64}} AND occurred_at_us < {{end:Int64}}
    AND hex(key_tree) IN {{trees:Array(String)}}
"""
_WHERE = {
    "run": "run = {id:String}",
    "conversation": "conversation = {id:String}",
    "user": "user = {id:String}",
    "history-of": "user = {id:String}",
    "day": "hex(key_tree) IN {trees:Array(String)} AND key_day = {day:UInt8}",
}
_COLUMNS = {
    "run": ("user", "gen", "conversation", "subject"),
    "conversation": ("user", "gen", "conversation"),
    "user": ("user",),
    "history-of": ("user", "gen"),
}
_LEVELS = {"history-of": "history"}
_SQL_NAMES = {"gen": "key_gen", "subject": "run"}


class Aiming:
    """Looks up one selector of one project."""

    def __init__(self, config: Config, keys: KeyReader, org: str, project: str) -> None:
        self._config = config
        self._keys = keys
        self._org = org
        self._project = project
        self._clickhouse = ClickHouse(config)

    def aim(self, what: Selector) -> Aim:
        """Return the places of what a selector names; no targets where there is no such thing."""
        if what.kind == "day":
            return self._day(what.value)
        id_ = identified(self._config, self._org, _ID_KINDS[what.kind], what.value)
        return self._named(what.kind, id_) if id_ else Aim([], 0)

    def _named(self, kind: Kind, id_: str) -> Aim:
        targets = list(self.places(kind, id_))
        if kind == "run" and not any(map(self._is_alive, targets)):
            return Aim([], 0)
        if kind == "user" and targets:
            targets = [*targets, *self._today(id_, {(t.tree, t.day) for t in targets})]
        return Aim(targets, self._count(_WHERE[kind], id=id_))

    def places(self, kind: str, id_: str) -> Iterator[Target]:
        """Yield every place in which the view has seen a run, conversation or user."""
        names = _COLUMNS[kind]
        columns = ["hex(key_tree)", "key_day", *(_SQL_NAMES.get(name, name) for name in names)]
        sql = _PLACES.format(
            database=self._clickhouse.database, columns=", ".join(columns), where=_WHERE[kind]
        )
        for tree, day, *values in self._rows(sql, id=id_):
            given = dict(zip(names, values, strict=True))
            yield Target(_LEVELS.get(kind, kind), bytes.fromhex(tree), day, **given)

    def _count(self, where: str, **parameters: Any) -> int:
        sql = _COUNT.format(database=self._clickhouse.database, where=where)
        return int(self._rows(sql, **parameters)[0][0])

    def _rows(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        scope = {"org": self._org, "project": self._project}
        return self._clickhouse.rows(sql, scope | parameters)

    def _is_alive(self, target: Target) -> bool:
        """Say whether a run still has a key at a place; one that cannot be read now may have."""
        locator = Locator(target.tree, target.day, target.gen)
        for kind in ("o", "q"):
            subject = Subject(self._org, target.user, target.conversation, target.subject, kind)
            try:
                self._keys.data_key(locator, subject)
                return True
            except (Erased, NoTree):
                continue
        return False

    def _today(self, user: str, known: set[tuple[bytes, int]]) -> Iterator[Target]:
        """Yield the place in which the user's next subject would begin today, if it is another."""
        grant = keeper_client.fetch_grant(self._config, credential_of(self._config, self._org))
        ids = {"user": user, "conversation": "", "subject_id": user, "kind": "o"}
        try:
            tree, day, _ = grant.begin(self._org, self._project, **ids)
        except Erased:
            return
        if (tree, day) not in known:
            yield Target("user", tree, day, user)

    def _day(self, text: str) -> Aim:
        day = _date(text)
        trees = {
            stored.tree: date.fromisoformat(f"{month}-01")
            for project, month, stored in self._keys.trees(self._org)
            if project.project == self._project
        }
        own = [tree for tree, month in trees.items() if month == day.replace(day=1)]
        older = {
            tree: days_in(month) for tree, month in trees.items() if month < day.replace(day=1)
        }
        targets = [Target("day", tree, day.day) for tree in own]
        runs = self._count(_WHERE["day"], trees=_hex(own), day=day.day) if own else 0
        elsewhere = [*self._elsewhere(day, older)] if older else []
        return Aim(targets + elsewhere, runs + len({target.subject for target in elsewhere}))

    def _elsewhere(self, day: date, last_days: Mapping[bytes, int]) -> Iterator[Target]:
        begin = datetime.combine(day, time(), UTC)
        bounds = {"begin": _us(begin), "end": _us(begin + _DAY)}
        sql = _ELSEWHERE.format(database=self._clickhouse.database)
        for hexed, number, *values in self._rows(sql, trees=_hex(last_days), **bounds):
            tree, (user, gen, conversation, run) = bytes.fromhex(hexed), values
            if number == last_days[tree]:
                yield Target("run", tree, number, user, gen, conversation, run)


def _hex(trees: Iterable[bytes]) -> list[str]:
    return [tree.hex().upper() for tree in trees]


def _us(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--day {text[:32]!r} is not a day: YYYY-MM-DD") from None
