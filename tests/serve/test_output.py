"""What is printed for people is shown by a terminal and never obeyed; JSON is always JSON."""

import json
from typing import Any

import pytest

from serve.cli import guarded
from serve.cli.keys_check import _show
from serve.cli.output import json_line, plain, say, table, text
from streams.keys.check import Finding
from turnlog.errors import DecodeError

# Sets a window's title, clears the screen, turns writing around, begins a line of its own.
FORGED = "a\x1b]0;x\x07b\x9b2Jc\u202ed\nall 3 trees agree\ud800[/e]"
SHOWN = r"a\x1b]0;x\x07b\x9b2Jc\u202ed\nall 3 trees agree\ud800[/e]"


def test_one_line_stays_one_line_of_what_is_printable() -> None:
    assert plain(FORGED) == SHOWN
    assert plain("Zoë 東京 😀") == "Zoë 東京 😀"
    assert plain(7) == "7"


def test_text_keeps_its_lines_and_whatever_no_terminal_obeys() -> None:
    assert text("a\r\n\tb\x1b[31mc\rd\x9b\x7f") == "a\n\tb\\x1b[31mc\\rd\\x9b\\x7f"
    # A joined family, a space that does not break, a Persian word.
    for kept in ("👨\u200d👩\u200d👧", "12\u00a0€", "می\u200cخواهم"):
        assert text(kept) == kept


def test_a_cell_and_a_title_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    table([{"org": FORGED, "n": 1}, {"org": ":smile: [red]", "n": None}], ["org", "n"], FORGED)
    title, _, first, second = capsys.readouterr().out.splitlines()
    assert title.strip() == SHOWN
    assert first.split(maxsplit=1)[0] == SHOWN.split(maxsplit=1)[0]
    assert SHOWN in first and ":smile: [red]" in second


@pytest.mark.parametrize(
    "finding",
    [
        Finding(FORGED, FORGED, FORGED, FORGED)._asdict(),
        dict.fromkeys(("org", "tree", "generation", "where", "why", "detail"), FORGED),
    ],
    ids=["finding", "kept"],
)
def test_a_finding_is_one_line(finding: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    _show(finding, as_json=False)
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and said[:-1].isprintable()
    _show(finding, as_json=True)
    assert json.loads(capsys.readouterr().out)["org"] == FORGED.replace("\ud800", "\ufffd")


def test_an_error_that_names_a_record_is_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise DecodeError(f"row {FORGED}\nand its second line")

    assert guarded(fails) == 1
    said = capsys.readouterr().err
    assert all(line.isprintable() for line in said.splitlines())
    # What a part said in its log, for example, has several lines.
    assert said.endswith("\nand its second line\n")


def test_half_of_a_surrogate_pair_is_said_and_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    json_line({"id": "a\ud800", "more": [("\udfff",)], "pair": "\ud83d\ude00"})
    assert json.loads(capsys.readouterr().out) == {"id": "a�", "more": [["�"]], "pair": "😀"}
    say("a\ud800", err=True)
    assert capsys.readouterr().err == "a\\ud800\n"
