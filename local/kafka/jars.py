"""Kafka's jars, fetched once by Maven as `pom.xml` beside this module pins them."""

import hashlib
import os
import pwd
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

from local.lock import locked
from turnlog.errors import NotInstalled, Unavailable

POM = Path(__file__).with_name("pom.xml")
_NAMESPACE = "{http://maven.apache.org/POM/4.0.0}"
_FETCH_S = 900


def version() -> str:
    """Return the version of Kafka that the pom pins."""
    root = ElementTree.parse(POM).getroot()
    return root.findtext(f"{_NAMESPACE}version", "")


def folders(home: Path) -> list[Path]:
    """Return where the jars may lie, best first: beside the environment, else in the home."""
    digest = hashlib.sha256(POM.read_bytes()).hexdigest()[:12]
    name = f"kafka-{version()}-{digest}"
    return [Path(sys.prefix) / "share" / "turnlog" / name, home / "share" / name]


def find(home: Path) -> Path | None:
    """Return the folder of the jars, or None when they were not fetched yet."""
    return next((folder for folder in folders(home) if folder.is_dir()), None)


def fetched(home: Path, prepare: Callable[[Path], None], notify: Callable[[str], None]) -> Path:
    """Return the folder of the jars, fetching and preparing them if they are missing.

    Raises:
        Unavailable: Maven is missing, or could not fetch them.
    """
    found = find(home)
    if found is not None:
        return found
    folder = _writable(folders(home))
    with locked(folder.with_name("fetch.lock"), notify, _FETCH_S):
        if not folder.is_dir():
            notify(f"fetching Kafka {version()} with Maven")
            _fetch(folder, prepare)
    return folder


def _writable(candidates: list[Path]) -> Path:
    for folder in candidates:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder.parent, os.W_OK):
            return folder
    raise Unavailable(f"Kafka can be stored in none of {', '.join(map(str, candidates))}")


def maven() -> str:
    """Return the path of `mvn`.

    Raises:
        Unavailable: there is none.
    """
    found = shutil.which("mvn")
    if not found:
        raise NotInstalled("no Maven: `mvn` fetches Kafka (Debian: maven)")
    return found


def _fetch(folder: Path, prepare: Callable[[Path], None]) -> None:
    # Fetched under another name and renamed: the folder exists when it is complete.
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [maven(), "-B", "-q", "-C", "-Dstyle.color=never", "-f", str(POM)]
    command += _repository(folder.parent)
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    command += ["-DincludeScope=runtime"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_FETCH_S
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"Maven did not fetch Kafka within {_FETCH_S} s") from error
    if done.returncode or not any(partial.glob("kafka_*.jar")):
        said = (done.stdout + done.stderr).decode(errors="replace").strip()
        raise Unavailable(f"Maven could not fetch Kafka {version()}: {_first_errors(said)}")
    prepare(partial)
    partial.rename(folder)


def _first_errors(said: str) -> str:
    errors = [line for line in said.splitlines() if "ERROR" in line and len(line) > 12]
    return "\n".join(errors[:3]) or said[-1000:]


def _repository(beside: Path) -> list[str]:
    # Java asks the password database for the home, not the environment; a service user has none
    # that can be written to.
    try:
        repository = Path(pwd.getpwuid(os.getuid()).pw_dir) / ".m2"
    except KeyError:
        repository = Path("/nonexistent/.m2")
    at = next(path for path in (repository, *repository.parents) if path.exists())
    if os.access(at, os.W_OK):
        return []
    return [f"-Dmaven.repo.local={beside / 'maven-repository'}"]
