"""What was said to the model and what it answered, out of the forms that spans have for it.

Every form becomes the same: messages with a role, text, reasoning and tool calls. The forms are
tried from the newest to the oldest; the first that says anything counts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from serve.otel.attributes import Attributes, below, first, indexed, parsed, plain, text
from serve.otel.spans import Happened, Span
from turnlog.providers import Choice, ToolCall
from turnlog.providers.exchange import Message
from turnlog.providers.json_text import dumps

_DETAILS = "gen_ai.client.inference.operation.details"
_SPOKEN = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_CHOICE = "gen_ai.choice"
_INPUT = (
    "gen_ai.input.messages",
    "gen_ai.prompt",
    "ai.prompt.messages",
    "ai.prompt",
    "ai.values",
    "ai.value",
    "langfuse.observation.input",
    "input.value",
    "mlflow.spanInputs",
    "traceloop.entity.input",
    "input",
)
_OUTPUT = (
    "gen_ai.output.messages",
    "gen_ai.completion",
    "ai.response.text",
    "ai.response.object",
    "langfuse.observation.output",
    "output.value",
    "mlflow.spanOutputs",
    "traceloop.entity.output",
    "output",
)
# Requests within requests, results within results: deeper ones are taken as they are, as JSON.
MAX_NESTED = 4
_TOOL_ROLES = frozenset(("tool", "function"))
_THINKING = frozenset(("thinking", "reasoning"))


@dataclass(slots=True)
class Said:
    """One message.

    Attributes:
        role: user, assistant, system, tool, … as the span has it.
        text: its text.
        reasoning: what the model thought.
        calls: tools that it asked for.
        name: who said it.
        finish: why the model ended; empty where it does not say.
        raw: the message as the span has it.
    """

    role: str
    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    name: str = ""
    finish: str = ""
    raw: Any = None


def asked(span: Span) -> Message | None:
    """Return the last message of a user or a tool, None where the span holds none."""
    for said in reversed(_input(span)):
        if said.role == "user" or said.role in _TOOL_ROLES:
            role = "user" if said.role == "user" else "tool"
            simple = isinstance(said.raw, str) or _is_simple(said.raw)
            if simple and not said.text:
                continue
            raw = b"" if simple else dumps(said.raw).encode("utf-8", "replace")
            return Message(role, said.text, raw, said.name)
    return None


def _is_simple(raw: Any) -> bool:
    """Say whether a message holds nothing but its text."""
    return isinstance(raw, Mapping) and raw.keys() <= {"role", "content", "name"}


def answered(span: Span) -> tuple[list[Choice], str]:
    """Return the answers that a span holds, and the first finish reason that they give."""
    said = _output(span)
    choices = [
        Choice(at, one.text, one.reasoning, "", one.calls)
        for at, one in enumerate(said)
        if one.text or one.reasoning or one.calls
    ]
    return choices, next((one.finish for one in said if one.finish), "")


def _input(span: Span) -> list[Said]:
    attributes = span.attributes
    found = [*_events(span, _SPOKEN), *_details(span, "gen_ai.input.messages")]
    for prefix in ("llm.input_messages.", "gen_ai.prompt."):
        found = found or _flat(attributes, prefix, "user")
    found = found or _bare(attributes, "gen_ai.prompt", "user")
    for name in _INPUT:
        found = found or _messages(attributes.get(name), "user")
    return found or _old_events(span, "gen_ai.content.prompt", "gen_ai.prompt", "user")


def _output(span: Span) -> list[Said]:
    attributes = span.attributes
    found = [*_events(span, {_CHOICE: "assistant"}), *_details(span, "gen_ai.output.messages")]
    for prefix in ("llm.output_messages.", "gen_ai.completion."):
        found = found or _flat(attributes, prefix, "assistant")
    found = found or _bare(attributes, "gen_ai.completion", "assistant") or _ai_sdk(attributes)
    for name in _OUTPUT:
        found = found or _messages(attributes.get(name), "assistant")
    return found or _old_events(span, "gen_ai.content.completion", "gen_ai.completion", "assistant")


def _events(span: Span, roles: Mapping[str, str]) -> Iterator[Said]:
    """Yield what events of v1.27 to v1.36 say, one message an event."""
    for event in span.events:
        if event.name in roles:
            yield _of_event(event, roles[event.name])


def _of_event(event: Happened, role: str) -> Said:
    body = {name: parsed(value) for name, value in event.attributes.items()}
    message = body.get("message")
    inner = message if isinstance(message, Mapping) else body
    said = _one({"role": role, **inner, "content": _content(inner, message)}, role)
    said.finish = plain(body.get("finish_reason"))
    return said


def _content(inner: Mapping[str, Any], message: Any) -> Any:
    return message if isinstance(message, str) else inner.get("content")


def _details(span: Span, name: str) -> Iterator[Said]:
    """Yield what the one event of v1.37 says that holds all messages."""
    for event in span.events:
        if event.name == _DETAILS:
            yield from _messages(event.attributes.get(name), "assistant")


def _old_events(span: Span, event_name: str, name: str, role: str) -> list[Said]:
    """Return what the events before v1.27 say."""
    found = (e.attributes.get(name) for e in span.events if e.name == event_name)
    return [said for value in found for said in _messages(value, role)]


def _flat(attributes: Attributes, prefix: str, role: str) -> list[Said]:
    """Return messages of attributes that count: `{prefix}0.role`, `{prefix}0.message.content`."""
    return [_of_flat(one, role) for one in indexed(attributes, prefix)]


def _bare(attributes: Attributes, name: str, role: str) -> list[Said]:
    """Return one message of `{name}.role` and `{name}.content`."""
    content = attributes.get(f"{name}.content")
    if content is None:
        return []
    return [_one({"role": plain(attributes.get(f"{name}.role")), "content": content}, role)]


def _of_flat(flat: Mapping[str, Any], role: str) -> Said:
    one = below(flat, "message.") or dict(flat)
    parts = [below(part, "message_content.") or part for part in indexed(one, "contents.")]
    calls = [_call(below(call, "tool_call.") or call) for call in indexed(one, "tool_calls.")]
    content = parsed_parts(one.get("content")) if one.get("content") is not None else parts
    thought = first(one, "reasoning", "reasoning_content")
    said = _one({"role": one.get("role"), "content": content, "reasoning": thought}, role)
    said.calls = said.calls + [call for call in calls if call.name or call.id]
    said.finish = plain(first(one, "finish_reason", "finishReason"))
    said.name = text(one, "name")
    said.raw = one if parts or calls else {"role": said.role, "content": content}
    return said


def _ai_sdk(attributes: Attributes) -> list[Said]:
    """Return the answer of an AI SDK call, whose text, object and calls stand apart."""
    calls = parsed(attributes.get("ai.response.toolCalls"))
    asked_for = [_call(call) for call in calls if isinstance(call, Mapping)] if _is(calls) else []
    answer = text(attributes, "ai.response.text", "ai.response.object", "ai.result.text")
    thought = text(attributes, "ai.response.reasoning")
    if not (asked_for or answer or thought):
        return []
    return [Said("assistant", answer, thought, asked_for)]


def _is(value: Any) -> bool:
    return isinstance(value, list)


def _messages(value: Any, role: str, depth: int = MAX_NESTED) -> list[Said]:
    """Return the messages of a value: a list of them, one, a request that holds them, or a text."""
    value = parsed(value)
    if isinstance(value, Mapping):
        held = first(value, "messages", "prompt", "contents", "input", "text", "content")
        if "role" not in value and held is not None and depth:
            return _messages(held, role, depth - 1)
        return [_one(value, role)] if value else []
    if isinstance(value, str) and value:
        return [Said(role, value, raw=value)]
    if not isinstance(value, list):
        return []
    return [_one(item, role) if isinstance(item, Mapping) else _plain(item, role) for item in value]


def _plain(item: Any, role: str) -> Said:
    inner = parsed(item)
    return Said(role, plain(inner if isinstance(inner, str) else item), raw=item)


def _one(item: Mapping[str, Any], role: str) -> Said:
    """Return a message of any of the forms that JSON has for it."""
    said = Said(plain(item.get("role")) or role, name=plain(item.get("name")), raw=dict(item))
    content = first(item, "parts", "content", "text", "response")
    texts: list[str] = []
    thoughts = [plain(first(item, "reasoning", "reasoning_content"))]
    for part in _parts(parsed_parts(content)):
        kind = plain(part.get("type"))
        if kind in ("tool_call", "tool-call", "tool_use", "function_call"):
            said.calls.append(_call(part))
        else:
            (thoughts if kind in _THINKING else texts).append(_part_text(part))
    calls = parsed(item.get("tool_calls"))
    said.calls += [_call(call) for call in calls if isinstance(call, Mapping)] if _is(calls) else []
    said.text, said.reasoning = "\n".join(filter(None, texts)), "\n".join(filter(None, thoughts))
    said.finish = plain(item.get("finish_reason"))
    return said


def parsed_parts(content: Any) -> Any:
    """Return parts that stand as JSON in a text; any other text as it is.

    Only where they are parts: a person may write JSON.
    """
    inner = parsed(content)
    if isinstance(inner, list) and inner and all(_is_part(part) for part in inner):
        return inner
    return content


def _is_part(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("type"), str)


def _parts(content: Any) -> Iterator[Mapping[str, Any]]:
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, Mapping):
            yield part
        elif part is not None:
            yield {"type": "text", "text": plain(part)}


def _part_text(part: Mapping[str, Any], depth: int = MAX_NESTED) -> str:
    found = first(part, "text", "content", "thinking", "response", "result", "output")
    if isinstance(found, list) and depth:
        return "\n".join(filter(None, (_part_text(one, depth - 1) for one in _parts(found))))
    return plain(found)


def _call(call: Mapping[str, Any]) -> ToolCall:
    """Return a tool call of any of the forms that spans have for it."""
    inner = call.get("function")
    flat = below(call, "function.")
    named = inner if isinstance(inner, Mapping) else flat or call
    arguments = first(named, "arguments", "args", "input")
    return ToolCall(
        plain(first(call, "id", "toolCallId", "tool_call_id")),
        plain(first(named, "name", "toolName")),
        plain(arguments),
    )
