"""`turnlog bench keys`: what the key tree costs beside the bare work, path by path."""

from collections.abc import Callable, Iterator

from bench import keys_reader, keys_tree
from bench.measure import Result
from turnlog.config import Config

RECORDS = {keys_tree.PATH: 20_000, keys_reader.PATH: keys_reader.ROWS}


def paths() -> dict[str, Callable[[Config, int], Result]]:
    """Return the measurements by the name of their path."""
    return {**keys_tree.paths(), **keys_reader.paths()}


def keys(config: Config, wanted: tuple[str, ...], records: int | None = None) -> Iterator[Result]:
    """Yield the result of each path as it is there.

    Args:
        config: of a running stack.
        wanted: names of paths.
        records: how many each side reads or derives; by default as many as the bars speak of.

    Raises:
        Unavailable: a part of the stack does not answer.
        UsageError: the stack has no address.
    """
    known = paths()
    for path in wanted:
        yield known[path](config, records or RECORDS[path])
