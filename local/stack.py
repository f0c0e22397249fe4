"""Start, stop and show the local stack."""

import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from local import buckets, kafka, ports, probe, process, workers
from local.lock import locked
from local.parts import PARTS, PORT_NAMES, Part, select, with_needs
from local.place import Place
from local.process import PidFile, Running
from turnlog.config import PARTS as ADDRESSED
from turnlog.config import Config
from turnlog.errors import Unavailable, UsageError

logger = logging.getLogger(__name__)

Notify = Callable[[str], None]

_LOCK_S = 600.0
_POLL_S = 0.05
# A worker that crashed this often since its start will not come up by being waited for.
_CRASHES = 3
# A part that was stopped, or is starting, is as somebody wanted it.
_FAULTS = ("died", "failing", "unreachable")


class State(NamedTuple):
    """One part as `turnlog status` shows it."""

    name: str
    kind: str  # store, worker or external
    pid: int | None
    address: str
    state: str  # running, starting, failing, died, stopped; external: running, unreachable


def silent(line: str) -> None:
    """Hear a line of progress and say nothing."""


def external_addresses(config: Config) -> dict[str, str]:
    """Return the parts whose address was given, which are used as they are and never started."""
    local = _stored_addresses(config)
    given = {name: getattr(config, name) for name in ADDRESSED}
    return {name: value for name, value in given.items() if value and value != local.get(name)}


def _stored_addresses(config: Config) -> dict[str, str]:
    try:
        stored: dict[str, str] = json.loads((config.home / "addresses.json").read_text())
    except (OSError, ValueError):
        return {}
    return stored


def up(config: Config, names: Sequence[str] = (), notify: Notify = silent) -> Config:
    """Start parts and what they need, and return the config with their addresses.

    What already runs is left alone. Concurrent calls wait for each other.

    Raises:
        UsageError: a name is none of ours.
        Unavailable: a part did not become healthy; the message ends with its log.
    """
    wanted = with_needs(select(tuple(names)))
    process.allow_open_files()
    with _locked_home(config, notify):
        return _Starter(config, notify).start(wanted)


def down(config: Config, names: Sequence[str] = (), notify: Notify = silent) -> list[str]:
    """Stop parts, the last started first, with all their children; return the names that ran.

    Raises:
        UsageError: a name is none of ours.
    """
    parts = select(tuple(names))
    if not config.home.exists():
        return []
    with _locked_home(config, notify):
        stopped: list[str] = []
        for kind in ("worker", "store"):
            stopped += _stop_all(config, [part for part in parts if part.kind == kind], notify)
        return stopped


def _stop_all(config: Config, parts: list[Part], notify: Notify) -> list[str]:
    kept = ports.Ports(config.home).by_name

    def stop(part: Part) -> bool:
        ran = process.stop(PidFile(config.home, part.name), part.stop_s)
        if ran:
            notify(f"{part.name}: stopped")
        if part.clean is not None:
            part.clean(kept)
        return ran

    with ThreadPoolExecutor(max_workers=len(parts) or 1) as pool:
        ran = list(pool.map(stop, parts))
    return [part.name for part, was in zip(parts, ran, strict=True) if was]


def status(config: Config) -> list[State]:
    """Return the state of every part, asked all at once; nothing is waited for longer than 2 s."""
    external = external_addresses(config)
    with ThreadPoolExecutor(max_workers=len(PARTS)) as pool:
        return list(pool.map(functools.partial(_state, config, external), PARTS))


def _state(config: Config, external: dict[str, str], part: Part) -> State:
    if part.name in external:
        address = external[part.name]
        state = "running" if probe.connects(address) else "unreachable"
        return State(part.name, "external", None, _without_password(address), state)
    file = PidFile(config.home, part.name)
    running = file.read()
    address = getattr(config, part.name, "") if part.address else ""
    if running is None:
        return State(part.name, part.kind, None, address, "died" if file.exists() else "stopped")
    health = _health(config, part, running, address)
    return State(part.name, part.kind, running.pid, address, health)


def _health(config: Config, part: Part, running: Running, address: str) -> str:
    if part.kind == "worker" and workers.is_failing(config.home, part.name):
        return "failing"
    if part.answers is None or part.answers(address):
        return "running"
    return "starting" if process.age_s(running.pid) < part.start_s else "failing"


def faults(config: Config, states: Iterable[State]) -> dict[str, str]:
    """Return what is wrong with each part that is meant to run and does not, as one line each."""
    return {one.name: _fault(config, one) for one in states if one.state in _FAULTS}


def _fault(config: Config, one: State) -> str:
    if one.kind == "external":
        return f"nothing answers at {one.address}"
    said = process.last_error(config.home, one.name)
    words = [PidFile(config.home, one.name).ending()] if one.state == "died" else []
    words += [said] if said else []
    return f"{': '.join(words) or 'does not answer'} ({process.log_path(config.home, one.name)})"


def _without_password(address: str) -> str:
    scheme, at, host = address.rpartition("@")
    return f"{scheme.split('://')[0]}://***@{host}" if at else address


@contextmanager
def _locked_home(config: Config, notify: Notify) -> Iterator[None]:
    home = config.home
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.chmod(0o700)
    except OSError as error:
        raise UsageError(f"TURNLOG_HOME {home} cannot be used: {error.strerror}") from error
    with locked(home / "stack.lock", notify, _LOCK_S):
        yield


class _Starter:
    """One `up` under the lock."""

    def __init__(self, config: Config, notify: Notify) -> None:
        self.given = config
        self.notify = notify
        self.external = external_addresses(config)
        self.ports = ports.Ports(config.home)
        self.moving = threading.Lock()

    def start(self, wanted: Iterable[Part]) -> Config:
        """Start stores together, then what lies on them, then the workers."""
        parts = [part for part in wanted if part.name not in self.external]
        if any(part.name == "kafka" for part in parts):
            kafka.ready(self.given.home, self.notify)
        self.ports.choose(PORT_NAMES)
        self._make_room([part for part in parts if self._file(part).read() is None])
        config = self._write_addresses()
        self._together(part for part in parts if part.kind == "store")
        self._prepare(config, {part.name for part in wanted})
        late = [part for part in parts if part.kind == "worker"]
        late += [part for part in PARTS if part not in late and self._is_outdated(part)]
        self._together(part for part in late if part.name == "keeper")
        self._together(part for part in late if part.name != "keeper")
        return self._write_addresses()

    def _file(self, part: Part) -> PidFile:
        return PidFile(self.given.home, part.name)

    def _make_room(self, parts: list[Part]) -> None:
        """Give parts that are to be started other ports where their own are taken."""
        strays = process.marked(self.given.home) if parts else {}
        for part in parts:
            if part.name in strays:
                process.stop(self._file(part), part.stop_s)
            for name in part.ports:
                self._move_if_taken(name)

    def _move_if_taken(self, name: str) -> bool:
        port = self.ports.by_name[name]
        holder = ports.holder(port)
        if not holder:
            return False
        with self.moving:
            new = self.ports.move(name)
        self.notify(f"{name}: port {port} is taken by {holder}, moved to {new}")
        return True

    def _write_addresses(self) -> Config:
        local = {
            part.name: part.address_at(self.ports.by_name)
            for part in PARTS
            if part.address and part.name not in self.external
        }
        path = self.given.home / "addresses.json"
        if _stored_addresses(self.given) != local:
            process.replace(path, json.dumps(local, indent=1))
        return self.given.model_copy(update={**local, **self.external})

    def _together(self, parts: Iterable[Part]) -> None:
        chosen = list(parts)
        with ThreadPoolExecutor(max_workers=len(chosen) or 1) as pool:
            started = [pool.submit(self._ensure, part) for part in chosen]
        failures = [str(error) for one in started if (error := one.exception()) is not None]
        if failures:
            raise Unavailable("\n".join(failures))

    def _ensure(self, part: Part) -> None:
        file = self._file(part)
        if self._is_outdated(part):
            process.stop(file, part.stop_s)
        if file.read() is None or not self._survives(part, file):
            self._launch(part, file)

    def _survives(self, part: Part, file: PidFile) -> bool:
        """Wait until a running part answers; False when it was dying already."""
        try:
            self._await(part, file)
        except Unavailable:
            if file.read() is not None:
                raise
            self._make_room([part])
            return False
        return True

    def _is_outdated(self, part: Part) -> bool:
        """Tell whether a worker runs on addresses that have changed: it read them at its start."""
        running = self._file(part).read() if part.kind == "worker" else None
        return running is not None and running.told != self._told()

    def _told(self) -> dict[str, str]:
        told = {p.name: p.address_at(self.ports.by_name) for p in PARTS if p.address}
        return {**told, **self.external}

    def _launch(self, part: Part, file: PidFile) -> None:
        began = time.monotonic()
        for last in (False, True):
            place = Place(self.given, self.ports.by_name, self.external)
            process.start(file, part.launch(place), self._told())
            try:
                self._await(part, file)
                break
            except Unavailable:
                # Lost the race for a port with another process: once more on another one.
                died = file.read() is None
                if last or not died or not any([*map(self._move_if_taken, part.ports)]):
                    raise
                self._write_addresses()
        self.notify(f"{part.name}: running ({time.monotonic() - began:.1f} s)")

    def _await(self, part: Part, file: PidFile) -> None:
        deadline = time.monotonic() + part.start_s
        address = part.address_at(self.ports.by_name)
        while file.read() is not None:
            if part.answers is None or part.answers(address):
                return
            if workers.crashes(self.given.home, part.name) >= _CRASHES:
                raise Unavailable(self._complaint(part, "crashes again and again"))
            if time.monotonic() > deadline:
                raise Unavailable(self._complaint(part, f"does not answer on {address}"))
            time.sleep(_POLL_S)
        ended = f"ended while it was starting ({file.ending()})"
        raise Unavailable(self._complaint(part, ended))

    def _complaint(self, part: Part, what: str) -> str:
        home = self.given.home
        tail = process.log_tail(home, part.name)
        said = ", which ends:\n" + "\n".join(tail) if tail else ", which is empty"
        return f"{part.name} {what}; its log is {process.log_path(home, part.name)}{said}"

    def _prepare(self, config: Config, wanted: set[str]) -> None:
        with ThreadPoolExecutor(max_workers=2) as pool:
            work = []
            if "kafka" in wanted:
                work.append(pool.submit(self._ensure_topics, config))
            if "s3" in wanted and not buckets.known(config):
                work.append(pool.submit(buckets.ensure, config))
        for one in work:
            one.result()

    def _ensure_topics(self, config: Config) -> None:
        import topics

        for drift in topics.ensure(config):
            self.notify(f"topics: {drift}")
