"""From one recorded line to an `Exchange`: pure, no clock and no client."""

import re
from collections.abc import Mapping
from typing import Any

from turnlog.providers import forms, requests, usage
from turnlog.providers.exchange import Chunk, Exchange, Usage
from turnlog.providers.framing import Framed, frame
from turnlog.providers.reading import Reading, assemble, error_text, whole_characters
from turnlog.providers.source import Source, read_source

_END_OF_NAME = re.compile(r"[^A-Za-z0-9._-]")


def read_exchange(line: Mapping[str, Any], *, at_us: int) -> Exchange:
    """Return what a line of recorded traffic says.

    Args:
        line: the line's JSON object, in the form that `docs/providers.md` describes.
        at_us: when it is booked, UTC microseconds; prices depend on it.

    Raises:
        BadLine: a field is missing or wrong, or a body does not decode. What a body *says* never
            raises: what is not understood is stored whole, with a warning.
    """
    return understand(read_source(line), at_us=at_us)


def understand(source: Source, *, at_us: int) -> Exchange:
    """Return what a checked line says; see `read_exchange`."""
    framed = frame(source)
    form = forms.form_of(source, framed)
    reading = Reading()
    forms.READERS[form](framed.pieces, reading)
    return conclude(source, framed, form, reading, at_us=at_us)


def conclude(
    source: Source,
    framed: Framed,
    form: str,
    reading: Reading,
    *,
    at_us: int,
    chunks: list[Chunk] | None = None,
) -> Exchange:
    """Return what a line says whose response was read.

    Args:
        source: the line.
        framed: how its response came; of the pieces only the first is looked at.
        form: which reader read it.
        reading: what that gathered.
        at_us: see `read_exchange`.
        chunks: those of the reading in whole characters, where they are at hand.
    """
    if chunks is None:
        chunks = whole_characters(reading.chunks) if framed.stream else []
    request = requests.parse(source)
    asked = requests.model_of(source, request)
    status, code = _outcome(source, framed, reading)
    pieces = reading.snapshot or reading.chunks
    return Exchange(
        source=source,
        form=form,
        model=reading.model or asked,
        request_model=asked,
        streaming=framed.stream,
        status=status,
        finish_reason=_finish_reason(reading),
        error_code=code,
        error=_error(source, framed, reading, status),
        response_id=reading.response_id,
        choices=assemble(pieces),
        chunks=chunks,
        usage=_usage(form, source, reading, status, asked, at_us),
        message=requests.last_message(request),
        warnings=_warnings(form, source, framed),
    )


def _outcome(source: Source, framed: Framed, reading: Reading) -> tuple[str, str]:
    """Return the terminal status and the error code; `docs/providers.md` has the table."""
    if source.status >= 300 or source.status < 200:
        return "failed", f"http_{source.status}"
    if reading.error is not None and not reading.guarded:
        return "failed", "provider_error"
    if reading.cancelled:
        return "cancelled", "cancelled"
    ended = framed.whole and (not framed.stream or reading.finished() or reading.guarded)
    return ("completed", "") if ended else ("interrupted", "cut_off")


def _finish_reason(reading: Reading) -> str:
    return reading.finish_reason() or ("content_filter" if reading.guarded else "")


def _error(source: Source, framed: Framed, reading: Reading, status: str) -> str:
    """Return the message of what went wrong; an error answer of unknown form is its own."""
    if reading.error is not None or status != "failed":
        return reading.error or ""
    if framed.pieces:
        return error_text(framed.pieces[0].value)
    return error_text(source.response.decode("utf-8", "replace"))


def _usage(
    form: str, source: Source, reading: Reading, status: str, asked: str, at_us: int
) -> Usage:
    if form == "other":
        return usage.unknown("not_understood")
    if not reading.usage_blocks:
        return usage.unknown("no_usage")
    block = usage.Block(reading.usage_blocks)
    if status == "interrupted" or not reading.usage_is_final:
        # What was counted up to the cut is not what is billed: the provider may have gone on.
        return usage.unknown("partial", block.numbers)
    context = usage.public_context(reading.price_context)
    return usage.measure(form, block, source, (reading.model, asked), at_us, context)


def _warnings(form: str, source: Source, framed: Framed) -> list[str]:
    found = []
    if form == "other":
        name = _END_OF_NAME.sub("_", source.provider)[:64] or "no provider named"
        found.append(f"not_understood: {name}: stored whole, usage unknown")
    if framed.plain:
        found.append(f"plain_data: {framed.plain} data lines are not JSON")
    return found
