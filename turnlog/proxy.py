"""A user's HTTP proxy, which must not be asked for what is on this machine."""

from collections.abc import Mapping


def past_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep a user's HTTP proxy out of talks with this machine."""
    return {
        name: ",".join(filter(None, [environment.get(name), "127.0.0.1", "localhost"]))
        for name in ("no_proxy", "NO_PROXY")
    }
