"""`kill -9` of a real keeper at random moments of punctures and mints.

What must hold, whatever the moment: a key that nobody asked to destroy is never `Erased` and never
another one; a puncture that was answered holds; one that was not is completed by asking again; the
generations of each tree's heads follow one another without a gap; a reader that follows the topic
all the while never stops a tree.
"""

import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from threading import Timer
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from local.probe import http_ok
from local.workers import environment
from streams.keys_reader import KeyReader, public_key
from turnlog import keeper_client
from turnlog.config import Config
from turnlog.errors import Erased, TurnlogError, Unavailable
from turnlog.kafka import client_settings, read_all
from turnlog.keys import Locator, Subject
from turnlog.keys.rows import ZERO_DIGEST, read_label
from turnlog.keys.targets import LEVELS, Target

ORG, PROJECT = "local", "default"
START_S = 120.0
# How often each level is punctured: a day takes everything that is known of it.
_WEIGHTS = {"key": 2, "run": 12, "conversation": 3, "history": 2, "user": 1, "day": 1}
_USERS, _CONVERSATIONS, _RUNS = ("ann", "bob", ""), ("talk", "chat", ""), 2
_SAMPLE = 150
_COUNTED = ("in_flight", "at_start", "punctures", "mints", "done_unanswered", "checks")


class Result(NamedTuple):
    """What a run of kills found.

    Attributes:
        kills: keepers that were killed.
        seed: of the choices; the moments are the machine's.
        in_flight: kills that hit a call which was then made again until it was answered.
        at_start: kills of a keeper that was starting.
        punctures: prefixes that were answered for.
        mints: days that were minted.
        done_unanswered: of the calls made again, those that turned out to have been done.
        subjects: keys that were followed.
        erased: of those, how many were destroyed on purpose.
        checks: how often a key was derived and compared.
        heads: heads in the topic.
        wrong: what was found that must not be; empty when all is well.
    """

    kills: int
    seed: int
    in_flight: int
    at_start: int
    punctures: int
    mints: int
    done_unanswered: int
    subjects: int
    erased: int
    checks: int
    heads: int
    wrong: list[str]


def kill_keepers(
    config: Config,
    home: Path,
    kills: int,
    seed: int,
    notify: Callable[[int], None] = lambda killed: None,
) -> Result:
    """Kill a keeper so often, in a topic and a home of its own on a running Kafka.

    Args:
        config: where Kafka is.
        home: empty folder for the keeper's key file, credentials and log.
        kills: how often.
        seed: of the choices.
        notify: called with the number of kills so far.

    Raises:
        Unavailable: Kafka does not answer, or a keeper does not start.
    """
    own = config.model_copy(
        update={"home": home, "keeper": f"http://127.0.0.1:{_free_port()}", "keeper_public": ""}
    )
    topic = f"chaos.keys.{seed}.{int(time.time())}"
    _make_topic(config, topic)
    with Process(own, topic) as process:
        process.start()
        with KeyReader(own, topic=topic) as reader:
            return _Chaos(process, reader, random.Random(seed)).run(kills, seed, notify)


class Process:
    """A keeper as a process of its own.

    Attributes:
        config: with its address.
        topic: of key rows.
        days: file with the days that its clock is ahead.
    """

    def __init__(self, config: Config, topic: str) -> None:
        self.config = config
        self.topic = topic
        self.days = config.home / "days"
        self.child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Process":
        self.config.home.mkdir(parents=True, exist_ok=True)
        self.days.write_text("0")
        return self

    def __exit__(self, *about: object) -> None:
        self.kill()

    def launch(self) -> "subprocess.Popen[bytes]":
        """Start it and do not wait until it answers."""
        given = {"kafka": self.config.kafka, "keeper": self.config.keeper}
        command = [sys.executable, "-m", "bench.chaos.keeper_process", self.topic, str(self.days)]
        root = Path(__file__).parents[2]
        with (self.config.home / "keeper.log").open("ab") as log:
            self.child = subprocess.Popen(
                command, env=environment(self.config, given), stdout=log, stderr=log, cwd=root
            )
        return self.child

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            Unavailable: it ended, or did not answer in two minutes.
        """
        child = self.launch()
        deadline = time.monotonic() + START_S
        while not http_ok(self.config.keeper, "/health"):
            if child.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"the keeper does not start: {self.config.home / 'keeper.log'}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self.child is not None:
            self.child.kill()
            self.child.wait()

    def ahead(self, days: int) -> None:
        """Set the keeper's clock."""
        draft = self.days.with_suffix(".new")
        draft.write_text(str(days))
        draft.replace(self.days)


class _Followed(NamedTuple):
    """A key and the digest that commits to it."""

    locator: Locator
    subject: Subject
    commit: bytes


class _Chaos:
    """One run: what was asked for, what was answered, and what must therefore derive."""

    def __init__(self, process: Process, reader: KeyReader, chance: random.Random) -> None:
        self.process = process
        self.reader = reader
        self.chance = chance
        self.counts: Counter[str] = Counter()
        self.followed: list[_Followed] = []
        self.known_days: set[tuple[bytes, int]] = set()
        self.asked: list[Target] = []
        self.answered: list[Target] = []
        self.days = 0
        self.wrong: list[str] = []

    def run(self, kills: int, seed: int, notify: Callable[[int], None]) -> Result:
        self._follow_new_days()
        for killed in range(1, kills + 1):
            self._kill_once()
            self._check(self.chance.sample(self.followed, min(_SAMPLE, len(self.followed))))
            notify(killed)
        self._check(self.followed)
        heads = self._check_log()
        with KeyReader(self.process.config, topic=self.process.topic) as self.reader:
            self._check(self.followed)
        erased = sum(self._is_covered(self.answered, key) for key in self.followed)
        return Result(
            kills=kills,
            seed=seed,
            subjects=len(self.followed),
            erased=erased,
            heads=heads,
            wrong=self.wrong,
            **{name: self.counts[name] for name in _COUNTED},
        )

    def _kill_once(self) -> None:
        """Work until the killer has struck, start again, finish what was not answered."""
        if self.chance.random() < 0.1:
            self._kill_at_start()
            return
        child = self.process.child
        assert child is not None
        # A call takes 10 to 60 ms; now and then several go by before the killer strikes.
        killer = Timer(self.chance.uniform(0, 0.15), child.kill)
        killer.start()
        unanswered = None
        while unanswered is None and child.poll() is None:
            unanswered = self._work()
        killer.join()
        child.wait()
        self.process.start()
        if unanswered is not None:
            self.counts["in_flight"] += 1
            self.counts["done_unanswered"] += not unanswered()
        self._follow_new_days()

    def _kill_at_start(self) -> None:
        self.counts["at_start"] += 1
        self.process.kill()
        child = self.process.launch()
        time.sleep(self.chance.uniform(0.3, 2.0))
        child.kill()
        child.wait()
        self.process.start()

    def _work(self) -> Callable[[], bool] | None:
        """Make one call; return it where it was not answered, to be made again."""
        call = self._mint() if self.chance.random() < 0.4 else self._puncture()
        try:
            call()
        except Unavailable:
            return call
        return None

    def _mint(self) -> Callable[[], bool]:
        """Return a call that has the next day minted, and says whether it was this one."""
        self.days += 1
        self.process.ahead(self.days)

        def call() -> bool:
            days = int(keeper_client.mint(self.process.config)["days"])
            self.counts["mints"] += days
            return days > 0

        return call

    def _puncture(self) -> Callable[[], bool]:
        targets = [self._target() for _ in range(self.chance.randint(1, 4))]
        self.asked += targets

        def call() -> bool:
            found = keeper_client.puncture(self.process.config, ORG, PROJECT, targets)
            self.answered += targets
            self.counts["punctures"] += len(found)
            return any(each["rows"] for each in found)

        return call

    def _target(self) -> Target:
        locator, subject, _ = self.chance.choice(self.followed)
        [level] = self.chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        if level == "conversation" and not subject.conversation:
            level = "run"
        place = subject.user, locator.gen, subject.conversation, subject.id, subject.kind
        return Target(level, locator.tree, locator.day, *place)

    def _follow_new_days(self) -> None:
        """Take on keys of days that were minted since."""
        self.reader.catch_up()
        for _, _, stored in self.reader.trees(ORG):
            for day in range(1, stored.head.minted_through + 1):
                if (stored.tree, day) not in self.known_days:
                    self.known_days.add((stored.tree, day))
                    self._follow(Locator(stored.tree, day, 0))

    def _follow(self, locator: Locator) -> None:
        for user in _USERS:
            for conversation in _CONVERSATIONS:
                for number in range(_RUNS):
                    subject = Subject(ORG, user, conversation, f"run_{number}", "oq"[number])
                    try:
                        key = self.reader.data_key(locator, subject)
                    except Erased:
                        # Before the first day that this topic's keeper minted.
                        return
                    self.followed.append(_Followed(locator, subject, key.commit))

    def _check(self, keys: list[_Followed]) -> None:
        self.reader.catch_up()
        for key in keys:
            self.counts["checks"] += 1
            found = self._derived(key)
            if self._is_covered(self.answered, key):
                fine = found == "erased"
            elif self._is_covered(self.asked, key):
                fine = found in ("erased", "alive")
            else:
                fine = found == "alive"
            if not fine:
                self.wrong.append(f"day {key.locator.day}, {key.subject.id}: {found}")

    def _derived(self, key: _Followed) -> str:
        try:
            same = self.reader.data_key(key.locator, key.subject).commit == key.commit
            return "alive" if same else "another key"
        except Erased:
            return "erased"
        except TurnlogError as error:
            return type(error).__name__

    def _is_covered(self, targets: list[Target], key: _Followed) -> bool:
        return any(_covers(target, key) for target in targets)

    def _check_log(self) -> int:
        """Return how many heads the topic has; each must follow the one before it."""
        public, _ = public_key(self.process.config)
        last: dict[bytes, tuple[int, bytes]] = {}
        heads = 0
        for message in read_all(self.process.config, self.process.topic):
            row_key, value = message.key() or b"", message.value() or b""
            if not row_key.endswith(b"/head"):
                continue
            heads += 1
            gen, digest = last.get(row_key, (0, ZERO_DIGEST))
            label = read_label(row_key, value, public)
            if (label.gen, label.prev) != (gen + 1, digest):
                self.wrong.append(f"{row_key.decode()}: generation {label.gen} after {gen}")
            last[row_key] = label.gen, sha256(value).digest()
        return heads


_FIELDS = ("user", "gen", "conversation", "subject", "kind")


def _covers(target: Target, key: _Followed) -> bool:
    """Say whether a target's prefix is one of a key's index."""
    subject = key.subject
    held = subject.user, key.locator.gen, subject.conversation, subject.id, subject.kind
    deep = list(LEVELS).index(target.level)
    same = (target.tree, target.day) == (key.locator.tree, key.locator.day)
    return same and all(getattr(target, _FIELDS[n]) == held[n] for n in range(deep))


def _make_topic(config: Config, name: str) -> None:
    admin = AdminClient(client_settings(config))
    made = NewTopic(name, 1, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([made])[name].result(30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
