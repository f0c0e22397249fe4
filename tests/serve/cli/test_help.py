from collections.abc import Iterator

import click
import pytest

from serve.cli import COMMANDS, cli


def _walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _walk(found, (*path, name))


def _command(path: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command


EVERY = [pytest.param(path, id=" ".join(path) or "turnlog") for path in _walk(cli)]


@pytest.mark.parametrize("path", EVERY)
def test_help_is_whole_and_has_an_example(path: tuple[str, ...]) -> None:
    command = _command(path)
    context = click.Context(command, info_name=" ".join(["turnlog", *path]), terminal_width=80)
    text = command.get_help(context)
    assert "\\b" not in text
    assert "\b" not in text
    assert not [line for line in text.partition("Commands:")[2].splitlines() if "..." in line]
    assert path == () or f"turnlog {' '.join(path)}" in text.partition("Example:")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_help_begins_with(name: str) -> None:
    help_text = " ".join((_command((name,)).help or "").split())
    assert help_text == COMMANDS[name].help or help_text.startswith(f"{COMMANDS[name].help} ")
