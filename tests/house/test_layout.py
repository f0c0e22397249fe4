"""The rules of the house that a machine can check."""

import ast
import statistics
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from serve.cli import COMMANDS, cli

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
BIN = Path(sys.executable).parent


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]


@pytest.mark.parametrize("name", PACKAGES)
def test_package_name_is_ours_alone(name: str) -> None:
    assert name not in sys.stdlib_module_names
    assert set(packages_distributions().get(name, ())) <= {"turnlog"}
    spec = find_spec(name)
    assert spec is not None
    assert spec.submodule_search_locations == [str(ROOT / name)]


def test_every_test_folder_is_a_package() -> None:
    # tests/sinks/__init__.py without tests/__init__.py makes pytest import
    # tests/sinks as the top-level `sinks`, hiding the real one.
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "format", "--check", "."],
        ["ruff", "check", "--no-cache", "."],
        ["lint-imports"],
        ["mypy"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_tool_finds_nothing(command: list[str]) -> None:
    tool = [str(BIN / command[0]), *command[1:]]
    done = subprocess.run(tool, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_modules_stay_under_500_lines() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in sources()}
    assert {path: n for path, n in lengths.items() if n > 500} == {}


def test_functions_stay_short() -> None:
    lengths = sorted(length for path in sources() for length in _function_lengths(path))
    assert statistics.median(lengths) < 10
    assert lengths[int(len(lengths) * 0.9)] <= 30


def _function_lengths(path: Path) -> list[int]:
    functions = (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return [_body_length(node) for node in functions]


def _body_length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
    return (node.end_lineno or 0) - body[0].lineno + 1


def test_broad_except_only_where_it_ends_the_process() -> None:
    broad = [
        path
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or getattr(node.type, "id", "") in ("Exception", "BaseException"))
    ]
    assert len(broad) <= 1, broad


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches_itself(name: str) -> None:
    command = cli.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    assert command.help, name
    assert f"turnlog {name}" in (ROOT / "README.md").read_text() + _docs(), name


def _docs() -> str:
    return "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))


def test_lock_file_names_no_registry() -> None:
    assert "http" not in "".join(
        line
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if not line.lstrip().startswith("#")
    ).replace("aiohttp", "").replace("httpcore", "").replace("httpx", "").replace("httptools", "")


def test_version_and_changelog_agree() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## {PROJECT['project']['version']}" in changelog
