"""The wheel for gateways: turnlog/ alone, beside a project that has its own `schemas`."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from turnlog.config import Config
from turnlog.events import decode
from turnlog.events.schema import history_folder, schema_folder
from turnlog.kafka import read_all
from turnlog.keeper_client import create

ROOT = Path(__file__).resolve().parents[2]
WHOLE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GATEWAY = tomllib.loads((ROOT / "gateway" / "pyproject.toml").read_text())["project"]
UV = Path(sys.executable).with_name("uv")
ORG = "gateway_wheel"
OURS = ("serve", "replay", "streams", "processors", "sinks", "local", "samples")

APPLICATION = """
import importlib, pkgutil, sys
import schemas, topics
assert (schemas.OWNER, topics.OWNER) == ("the user", "the user")
import turnlog
for module in pkgutil.walk_packages(turnlog.__path__, "turnlog."):
    importlib.import_module(module.name)
from turnlog import SyncProducer
from turnlog.events.schema import TYPES, history_folder, schema_folder, versions
assert schema_folder().is_relative_to(sys.prefix), schema_folder()
assert (schema_folder().parent / "catalogue.toml").exists()
with SyncProducer.open(credential=__import__("pathlib").Path(sys.argv[1])) as producer:
    with producer.run(org=sys.argv[2], provider="openai", request={"a": 1}) as run:
        run.chunk("hello")
        run.complete(b"{}", {"output_text": 2})
print(len(TYPES), len(versions()), run.run)
for name in sys.argv[3].split(","):
    assert name not in sys.modules, name
"""


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[><=\[ ]", one, maxsplit=1)[0].lower() for one in requirements}


def _imported() -> set[str]:
    """Every top-level name that a module of turnlog/ imports, also within functions."""
    found: set[str] = set()
    for path in (ROOT / "turnlog").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0 and node.module
                found.add(node.module.partition(".")[0])
    return found


def test_turnlog_imports_its_dependencies_and_nothing_else_of_ours() -> None:
    foreign = _imported() - set(sys.stdlib_module_names) - {"turnlog"}
    distributions = packages_distributions()
    needed = {distributions[name][0].lower().replace("_", "-") for name in foreign}
    # boto3 brings botocore; who imports it does so in the function that needs it.
    assert needed - {"boto3", "botocore"} == _names(GATEWAY["dependencies"])


def test_the_two_wheels_agree() -> None:
    assert GATEWAY["version"] == WHOLE["version"]
    assert set(GATEWAY["dependencies"]) <= set(WHOLE["dependencies"])


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that holds the wheel and what it brings."""
    folder = tmp_path_factory.mktemp("gateway")
    uv("build", "-q", "--wheel", "--no-build-isolation", "--python", sys.executable,
       "gateway", "-o", str(folder / "dist"))  # fmt: skip
    uv("venv", "-q", "--python", sys.executable, str(folder / "venv"))
    python = folder / "venv" / "bin" / "python"
    (wheel,) = (folder / "dist").glob("*.whl")
    install = ("pip", "install", "-q", "--python", str(python), str(wheel))
    try:
        uv(*install, "--offline")
    except subprocess.CalledProcessError:  # the cache of this machine has not all of it
        uv(*install)
    return python


def uv(*arguments: str) -> str:
    done = subprocess.run(
        [UV, *arguments], cwd=ROOT, check=True, capture_output=True, text=True, timeout=300
    )
    return done.stdout


def test_a_gateway_writes_a_run_beside_its_own_schemas(
    stack: Config, interpreter: Path, tmp_path: Path
) -> None:
    create(stack, ORG)
    for name in ("schemas", "topics"):
        (tmp_path / f"{name}.py").write_text("OWNER = 'the user'\n")
    (tmp_path / "application.py").write_text(APPLICATION)
    passed = ("PATH", "TURNLOG_SPOOL_AFTER_MS")
    own = {name: os.environ[name] for name in passed} | {"TURNLOG_HOME": str(stack.home)}
    credential = stack.credentials / f"{ORG}.json"
    done = subprocess.run(
        [interpreter, "application.py", credential, ORG, ",".join(OURS)],
        cwd=tmp_path, env=own, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    types, versions, run = done.stdout.split()
    assert int(types) == len(list(schema_folder().glob("*.avsc")))
    past = {path.stem for path in history_folder().glob("*/*.avsc")}
    assert int(versions) >= len(past)
    key = f"{ORG}/{run}".encode()
    found = [m for m in read_all(stack, "turnlog.runs") if m.key() == key]
    assert [decode(m.value() or b"").type for m in found] == [
        "run.created",
        "run.started",
        "run.completed",
    ]


def test_it_brings_only_what_a_gateway_needs(interpreter: Path) -> None:
    listed = uv("pip", "list", "-q", "--format=freeze", "--python", str(interpreter))
    brought = {line.partition("==")[0].lower() for line in listed.splitlines()}
    heavy = _names(WHOLE["dependencies"]) - _names(GATEWAY["dependencies"])
    assert "faust-streaming" in heavy
    assert not brought & heavy
