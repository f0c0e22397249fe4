"""Which events another program may append, and what it says in each.

Left out is what a part of the stack alone decides (audit, erasures, packs, the finalizer's words),
and what no view folds yet: to accept it would be to send it to the dead letters.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from processors.runs import TERMINAL
from turnlog.events import TYPES
from turnlog.events.schema import COMMON

# `id` names the event; `number`: the run's own epoch and seq do; `beat`: its time does.
Identity = Literal["id", "number", "beat"]
Form = Literal["text", "bytes", "list"]


class Kind(NamedTuple):
    """One type of event.

    Attributes:
        type: its name.
        identity: what makes an event one of its kind (DESIGN.md section 3).
        subject: which key seals its content, as in `turnlog.keys.Subject`; empty: it has none.
        begins: whether its subject begins with it, so that it chooses the key locator.
        content: its content fields, and the form of each.
        needs: fields that must be given.
        fields: every field that may be given, content apart.
    """

    type: str
    identity: Identity
    subject: str
    begins: bool
    content: Mapping[str, Form]
    needs: tuple[str, ...]
    fields: frozenset[str]


_FREE = ("conversation", "run", "turn", "user", "project")
_TRACE = ("correlation_id", "causation_id", "traceparent")
_NUMBERED = ("writer_epoch", "seq")
# Words of the finalizer, of imports, and what the type says already.
_WITHHELD = frozenset(("provisional", "import_seq", "source_ref", "status"))

_REQUEST: Mapping[str, Form] = {
    "request": "bytes",
    "method": "text",
    "host": "text",
    "path": "text",
    "content_type": "text",
}
_RESPONSE: Mapping[str, Form] = {
    "response": "bytes",
    "output": "list",
    "timeline": "list",
    "error": "text",
}


def _kind(
    type: str,
    identity: Identity,
    subject: str = "",
    content: Mapping[str, Form] | None = None,
    needs: tuple[str, ...] = (),
    *,
    begins: bool = False,
    more: tuple[str, ...] = (),
) -> Kind:
    own = {field.name for field in TYPES[type].fields[len(COMMON) :]} - _WITHHELD
    counted = () if identity == "id" else _NUMBERED if identity == "number" else ("writer_epoch",)
    free = [name for name in _FREE if name != "run" or subject not in ("t", "d")]
    fields = frozenset((*own, *free, *_TRACE, *counted, *more))
    return Kind(type, identity, subject, begins, content or {}, needs, fields)


_RUN = ("run", "writer_epoch")
_ALL = (
    _kind("conversation.created", "id", "d", {"title": "text"}, ("conversation",), begins=True),
    _kind(
        "turn.appended", "id", "t", {"text": "text", "raw": "bytes"}, ("conversation",), begins=True
    ),
    _kind("usage.recorded", "id", more=(*_NUMBERED, "usage")),
    _kind("usage.corrected", "id", needs=("run",)),
    _kind("task.outcome", "id"),
    _kind("run.created", "number", "q", _REQUEST, _RUN, begins=True),
    _kind("run.started", "number", needs=(*_RUN, "seq")),
    _kind("run.taken_over", "number", needs=_RUN),
    _kind("run.output_retracted", "number", needs=(*_RUN, "seq")),
    _kind("run.heartbeat", "beat", needs=_RUN),
    _kind("chunk.batch", "number", "o", {"chunks": "list"}, (*_RUN, "seq")),
    *(_kind(type, "number", "o", _RESPONSE, (*_RUN, "seq")) for type in TERMINAL),
)

KINDS: Mapping[str, Kind] = MappingProxyType({kind.type: kind for kind in _ALL})
"""What may be appended, by type."""
