"""The table of parts: what each is, where it listens, how it is started and asked for health."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from local import clickhouse, kafka, probe, seaweed, valkey, workers
from local.place import Place
from local.process import Launch
from turnlog.errors import UsageError


@dataclass(frozen=True)
class Part:
    """One process of the stack.

    Attributes:
        name: as in `turnlog up NAME`.
        kind: `store` or `worker`.
        launch: makes what the part needs on disk and says how to start it.
        ports: names of its ports; the first is the one that clients use.
        address: form of its address, with `{port}`; "" when nobody connects to it.
        answers: whether the part at an address is ready to serve.
        clean: removes what the stopped part leaves outside the home, given the ports.
        needs: parts that are started before it.
        start_s: how long it may take until it answers.
        stop_s: how long it may take to stop before it is killed.
    """

    name: str
    kind: str
    launch: Callable[[Place], Launch]
    ports: tuple[str, ...] = ()
    address: str = ""
    answers: Callable[[str], bool] | None = None
    clean: Callable[[Mapping[str, int]], None] | None = None
    needs: tuple[str, ...] = ()
    start_s: float = 120.0
    stop_s: float = 10.0

    def address_at(self, ports: Mapping[str, int]) -> str:
        """Return the part's address; "" when nobody connects to it."""
        return self.address.format(port=ports[self.ports[0]]) if self.address else ""


def _worker(name: str, *needs: str) -> Part:
    return Part(name, "worker", lambda place: workers.launch(place, name), needs=needs)


_KEEPER = Part(
    "keeper",
    "worker",
    lambda place: workers.launch(place, "keeper"),
    ports=("keeper",),
    address="http://127.0.0.1:{port}",
    answers=lambda address: probe.http_ok(address, "/health"),
    needs=("kafka",),
)

# In the order of starting; stopped the other way round.
PARTS: tuple[Part, ...] = (
    Part(
        "kafka",
        "store",
        kafka.launch,
        ports=kafka.PORTS,
        address="127.0.0.1:{port}",
        answers=kafka.answers,
        start_s=180.0,
        stop_s=20.0,
    ),
    Part(
        "s3",
        "store",
        seaweed.launch,
        ports=seaweed.PORTS,
        address="http://127.0.0.1:{port}",
        answers=seaweed.answers,
        clean=seaweed.clean,
    ),
    Part(
        "redis",
        "store",
        valkey.launch,
        ports=("redis",),
        address="redis://127.0.0.1:{port}/0",
        answers=valkey.answers,
    ),
    Part(
        "clickhouse",
        "store",
        clickhouse.launch,
        ports=("clickhouse",),
        address="http://127.0.0.1:{port}",
        answers=clickhouse.answers,
        stop_s=20.0,
    ),
    _KEEPER,
    _worker("conversations", "kafka", "redis", "keeper"),
    _worker("usage-sink", "kafka", "clickhouse", "keeper"),
    _worker("runs-sink", "kafka", "clickhouse", "keeper"),
    _worker("ingest-sink", "kafka", "s3", "keeper"),
    _worker("locator", "kafka", "s3", "clickhouse", "keeper"),
    _worker("finalizer", "kafka", "keeper"),
)

NAMES = tuple(part.name for part in PARTS)
PORT_NAMES = tuple(port for part in PARTS for port in part.ports)


def select(names: tuple[str, ...]) -> tuple[Part, ...]:
    """Return the named parts in the order of starting; all when none is named.

    Raises:
        UsageError: a name is none of ours.
    """
    for name in names:
        if name not in NAMES:
            raise UsageError(f"there is no part {name!r}; the parts are {' '.join(NAMES)}")
    return tuple(part for part in PARTS if not names or part.name in names)


def with_needs(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return the parts and everything that they need, in the order of starting."""
    wanted = {part.name for part in parts}
    for part in reversed(PARTS):
        if part.name in wanted:
            wanted.update(part.needs)
    return tuple(part for part in PARTS if part.name in wanted)
