"""Looking up what a span says under one of several names."""

import re
from collections.abc import Mapping
from typing import Any

from turnlog.providers.json_text import NotJson, dumps, loads, mend

Attributes = Mapping[str, Any]

# A list in a name (`gen_ai.prompt.3.role`) is read up to here; what lies beyond stays unread.
MAX_INDEX = 10_000
_INDEX = re.compile(r"\d{1,5}")


def text(attributes: Attributes, *names: str) -> str:
    """Return the first of these attributes that is a text and not empty."""
    for name in names:
        value = attributes.get(name)
        if isinstance(value, str) and value:
            return value
    return ""


def first(attributes: Attributes, *names: str) -> Any:
    """Return the first of these attributes that is there, None where none is."""
    for name in names:
        if (value := attributes.get(name)) not in (None, ""):
            return value
    return None


def parsed(value: Any) -> Any:
    """Return what a text that is JSON holds; any other value as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[", '"')):
        return value
    try:
        return loads(value)
    except NotJson:
        return value


def plain(value: Any) -> str:
    """Return a text as it is, nothing for None, anything else as JSON."""
    if value is None:
        return ""
    return mend(value if isinstance(value, str) else dumps(value))


def below(attributes: Attributes, prefix: str) -> dict[str, Any]:
    """Return the attributes under a prefix, named by what follows it."""
    size = len(prefix)
    return {name[size:]: value for name, value in attributes.items() if name.startswith(prefix)}


def indexed(attributes: Attributes, prefix: str) -> list[dict[str, Any]]:
    """Return what stands under `{prefix}0.`, `{prefix}1.`, …: one dict an index, in order."""
    found: dict[int, dict[str, Any]] = {}
    for rest, value in below(attributes, prefix).items():
        number, _, name = rest.partition(".")
        if name and _INDEX.fullmatch(number) and int(number) < MAX_INDEX:
            found.setdefault(int(number), {})[name] = value
    return [found[number] for number in sorted(found)]
