"""Apache Kafka as one KRaft node."""

import base64
import logging
import os
import re
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local.kafka.jars import fetched, find
from local.place import Place
from local.ports import Ports
from local.probe import connects
from local.process import Launch, replace
from turnlog.config import load
from turnlog.errors import NotInstalled, Unavailable

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

logger = logging.getLogger(__name__)

PORTS = ("kafka", "kafka-controller")
_JAVA = 17
_FORMAT_S = 120
_ARCHIVE_S = 120
_ARCHIVE = "classes.jsa"
_POLL_S = 0.2
_PATIENCE_S = 2.0

_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@127.0.0.1:{controller}",
    "listeners": "PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
    "advertised.listeners": "PLAINTEXT://127.0.0.1:{broker}",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # Relative to the working directory: a comma in a path would make two folders of it.
    "log.dirs": "{data}",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    # A sink that is stopped for longer than a week must not forget its position.
    "offsets.retention.minutes": "43200",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "log.cleaner.dedupe.buffer.size": "16777216",
    # After kill -9 the controller waits for the old session: 4.5 s instead of 11.7 s with these.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # One node tells nobody that it is alive by empty records, by default twice a second.
    "metadata.max.idle.interval.ms": "5000",
    # Faust asks for 6 s; a killed member of either kind of group is replaced after that time.
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "3000",
    "group.consumer.heartbeat.interval.ms": "1500",
    "group.consumer.min.heartbeat.interval.ms": "500",
}


def java() -> str:
    """Return the path of `java`.

    Raises:
        Unavailable: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    beside = Path(home) / "bin" / "java" if home else None
    found = str(beside) if beside and beside.exists() else shutil.which("java")
    if not found:
        raise NotInstalled("no Java: Kafka needs 17 or newer (Debian: openjdk-17-jre-headless)")
    return found


def java_version() -> str:
    """Return the version of Java and where it is.

    Raises:
        Unavailable: there is none, or Kafka needs a newer one.
    """
    path = java()
    done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30)
    match = re.search(r'version "(\d+)([^"]*)"', done.stderr)
    if match is None or int(match[1]) < _JAVA:
        said = match[0] if match else "without a version"
        raise NotInstalled(f"{path} is Java {said}; Kafka needs {_JAVA}")
    return f"{match[1]}{match[2]} ({path})"


def ready(home: Path, notify: Callable[[str], None]) -> Path:
    """Return the folder of Kafka's jars, fetched and prepared if this was not done yet.

    Raises:
        Unavailable: Java or Maven is missing or too old, or Maven could not fetch them.
    """
    java() if find(home) else java_version()
    return fetched(home, _archive_classes, notify)


def launch(place: Place) -> Launch:
    """Format Kafka's storage once, and say how to start it.

    Raises:
        Unavailable: Kafka was not fetched, or its storage cannot be formatted.
    """
    found = find(place.home)
    if found is None:
        raise NotInstalled("Kafka was not fetched yet: turnlog doctor --fetch")
    cwd = place.folder("kafka")
    _lay_out(place, cwd, found)
    # Classes that are read already when the broker starts: 3.6 s of CPU instead of 5.8 s.
    return _launch(cwd, [f"-XX:SharedArchiveFile=libs/{_ARCHIVE}", "-Xlog:cds=off"])


def _launch(cwd: Path, options: list[str]) -> Launch:
    heap = ["-Xms256m", "-Xmx512m"]
    logging_level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    when = "-Dorg.slf4j.simpleLogger.showDateTime=true"
    argv = [*_java(), *options, *heap, logging_level, when, "kafka.Kafka", "server.properties"]
    return Launch(argv, cwd, {"CLASSPATH": "libs/*"})


def _lay_out(place: Place, cwd: Path, jars: Path) -> None:
    _link(cwd / "libs", jars)
    _clean_temporary(cwd / "tmp")
    _write_properties(place, cwd / "server.properties", "data")
    if not (cwd / "data").exists():
        _format(place, cwd)


def _archive_classes(jars: Path) -> None:
    """Run a broker of no consequence once, for Java to note the classes that it loads."""
    with tempfile.TemporaryDirectory(prefix="turnlog-kafka-") as scratch:
        home = Path(scratch)
        ports = Ports(home)
        ports.choose(PORTS)
        cwd = home / "kafka"
        cwd.mkdir()
        _lay_out(Place(load(home=home), ports.by_name, {}), cwd, jars)
        launch = _launch(cwd, [f"-XX:ArchiveClassesAtExit=libs/{_ARCHIVE}"])
        address = f"127.0.0.1:{ports.by_name['kafka']}"
        if not _run_once(launch, address):
            (jars / _ARCHIVE).unlink(missing_ok=True)


def _run_once(launch: Launch, address: str) -> bool:
    with subprocess.Popen(
        launch.argv,
        cwd=launch.cwd,
        env={**os.environ, **launch.env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as broker:
        deadline = time.monotonic() + _ARCHIVE_S
        while broker.poll() is None and time.monotonic() < deadline and not answers(address):
            time.sleep(_POLL_S)
        broker.terminate()
        try:
            # 143 is how Java ends when it was asked to.
            return broker.wait(_ARCHIVE_S) in (0, 143)
        except subprocess.TimeoutExpired:
            broker.kill()
            return False


def _java() -> list[str]:
    # The first compiler alone: 5.3 s of CPU until all topics are made, instead of 9.8 s,
    # and no more a record over the 1.2 M after that. Native libraries of the codecs are unpacked
    # under the working directory, not in a /tmp that may be mounted noexec.
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.io.tmpdir=tmp"]
    return [java(), *options]


def _link(link: Path, target: Path) -> None:
    # A class path is split at colons; a link keeps the real path out of it.
    if not link.is_symlink() or link.readlink() != target:
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def _clean_temporary(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()


def _write_properties(place: Place, path: Path, data: str) -> None:
    ports = {"broker": place.ports["kafka"], "controller": place.ports["kafka-controller"]}
    lines = [f"{key}={value.format(data=data, **ports)}" for key, value in _SETTINGS.items()]
    replace(path, "\n".join(lines) + "\n")


def _format(place: Place, cwd: Path) -> None:
    # Formatted under another name and renamed, so that a format cut short is begun again.
    shutil.rmtree(cwd / "data.new", ignore_errors=True)
    _write_properties(place, cwd / "format.properties", "data.new")
    cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
    command = ["format", "-t", cluster, "-c", "format.properties"]
    done = subprocess.run(
        [*_java(), "kafka.tools.StorageTool", *command],
        cwd=cwd,
        env={**os.environ, "CLASSPATH": "libs/*"},
        capture_output=True,
        timeout=_FORMAT_S,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise Unavailable(f"Kafka's storage cannot be formatted in {cwd}: {said[-2000:]}")
    (cwd / "data.new").rename(cwd / "data")


def answers(address: str) -> bool:
    """Tell whether the broker serves every partition.

    The port opens before the controller admits the broker, and after a kill the broker knows its
    partitions before it leads them.
    """
    if not connects(address):
        return False
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "reconnect.backoff.ms": 200,
        "logger": _silent(),
        "socket.timeout.ms": 2000,
    }
    try:
        return _leads_everything(AdminClient(settings))
    except KafkaException:
        return False


def _leads_everything(admin: "AdminClient") -> bool:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    known = admin.list_topics(timeout=_PATIENCE_S)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {
        TopicPartition(name, partition): latest
        for name, topic in known.topics.items()
        for partition in topic.partitions
    }
    if asked:
        answered = admin.list_offsets(asked, request_timeout=_PATIENCE_S)
        for one in answered.values():
            one.result()  # raises while the partition has no leader
    return bool(known.brokers)


def _silent() -> logging.Logger:
    silent = logging.getLogger(f"{__name__}.librdkafka")
    silent.disabled = True
    return silent
