"""`turnlog bench doors`: what each door costs beside the bare thing that it stands in for."""

import importlib
from collections.abc import Iterator, Sequence

from bench.doors_line import Line
from turnlog.config import Config

MODULES = {
    "http": "bench.doors_http",
    "openai": "bench.doors_clients",
    "anthropic": "bench.doors_clients",
    "proxy": "bench.doors_proxy",
}
"""Which module measures the doors whose names begin so."""


def doors(config: Config, names: Sequence[str] = ()) -> Iterator[Line]:
    """Yield a line a door as it is there.

    Args:
        config: of a running stack.
        names: beginnings of the names of those wanted; all when empty.

    Raises:
        Unavailable: a part of the stack does not answer.
        UsageError: the stack has no address.
    """
    wanted = tuple(names) or tuple(MODULES)
    for module in dict.fromkeys(MODULES[name] for name in wanted):
        for line in importlib.import_module(module).measure(config):
            if line.door.startswith(wanted):
                yield line
