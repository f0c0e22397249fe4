"""`turnlog spool` as a user calls it; it needs no stack."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from serve.cli.spool import spool as command
from tests.turnlog.spool.test_damage import flip
from tests.turnlog.spool.test_look import fill
from turnlog.spool import Spool


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TURNLOG_HOME", str(tmp_path))
    monkeypatch.setenv("TURNLOG_SPOOL", str(tmp_path / "spool"))
    return tmp_path / "spool"


def test_an_empty_spool(folder: Path) -> None:
    assert "Nothing waits" in CliRunner().invoke(command, []).output
    found = json.loads(CliRunner().invoke(command, ["--json"]).output)
    assert found == {
        "segments": 0, "bytes": 0, "events": 0, "oldest_s": 0, "shed": {}, "damaged": 0,
    }  # fmt: skip


async def test_what_waits_is_summed_up_and_told_by_owner(folder: Path) -> None:
    one, two = await fill(folder, "one", 2), await fill(folder, "two", 3)
    one.note_shed("run-chunks", 4)
    two.note_shed("run-chunks", 1)
    await one.read("runs")
    await two.read("runs")
    found = json.loads(CliRunner().invoke(command, ["--json"]).output)
    assert (found["segments"], found["events"]) == (2, 5)
    assert found["shed"] == {"run-chunks": 5}
    assert found["bytes"] > 250 and found["oldest_s"] > 0
    shown = CliRunner().invoke(command, []).output
    assert "one" in shown and "two" in shown and "alive" in shown
    await one.close()
    await two.close()


async def test_what_is_damaged_is_told_while_it_is_kept(folder: Path) -> None:
    await (await fill(folder, "dead", 3)).close()
    [segment] = (folder / "dead").glob("*.seg")
    flip(segment, 20)
    heir = await Spool.open(folder, "heir")
    assert json.loads(CliRunner().invoke(command, ["--json"]).output)["damaged"] == 1
    assert "1 event is damaged and not sent" in CliRunner().invoke(command, []).output
    await heir.close()
