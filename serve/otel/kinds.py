"""What a span is. Only a call of a model becomes a run, and only a leaf of them is billed.

Each instrumentation says it in a way of its own, the most exact first: the operation of the AI
SDK, then OpenInference's kind, `gen_ai.operation.name`, Langfuse's type, OpenLLMetry's kind. A span
that says nothing of the sort is a call of a model if it names a model, tokens or messages.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum

from serve.otel.attributes import Attributes, text
from serve.otel.spans import Span


class Kind(StrEnum):
    """Kinds of spans; those that are no calls are accepted and not recorded."""

    CALL = "call"
    EMBEDDING = "embedding"
    WRAPPER = "wrapper"
    TOOL = "tool"
    OTHER = "not_a_model_call"


_AI_SDK = {
    "doGenerate": Kind.CALL,
    "doStream": Kind.CALL,
    "doEmbed": Kind.EMBEDDING,
    "generateText": Kind.WRAPPER,
    "streamText": Kind.WRAPPER,
    "generateObject": Kind.WRAPPER,
    "streamObject": Kind.WRAPPER,
    "embed": Kind.WRAPPER,
    "embedMany": Kind.WRAPPER,
    "toolCall": Kind.TOOL,
}
_OPENINFERENCE = {
    "LLM": Kind.CALL,
    "EMBEDDING": Kind.EMBEDDING,
    "TOOL": Kind.TOOL,
    "AGENT": Kind.WRAPPER,
    "CHAIN": Kind.WRAPPER,
}
_GEN_AI = {
    "chat": Kind.CALL,
    "completion": Kind.CALL,
    "text_completion": Kind.CALL,
    "generate_content": Kind.CALL,
    "responses": Kind.CALL,
    "embeddings": Kind.EMBEDDING,
    "embedding": Kind.EMBEDDING,
    "execute_tool": Kind.TOOL,
    "invoke_agent": Kind.WRAPPER,
    "create_agent": Kind.WRAPPER,
    "invoke_workflow": Kind.WRAPPER,
}
_LANGFUSE = {
    "generation": Kind.CALL,
    "embedding": Kind.EMBEDDING,
    "tool": Kind.TOOL,
    "agent": Kind.WRAPPER,
    "chain": Kind.WRAPPER,
}
_TRACELOOP = {
    "workflow": Kind.WRAPPER,
    "task": Kind.WRAPPER,
    "agent": Kind.WRAPPER,
    "tool": Kind.TOOL,
}
_REQUEST_TYPE = {
    "chat": Kind.CALL,
    "completion": Kind.CALL,
    "embedding": Kind.EMBEDDING,
    "rerank": Kind.OTHER,
}
_TABLES: tuple[tuple[str, Mapping[str, Kind]], ...] = (
    ("openinference.span.kind", _OPENINFERENCE),
    ("gen_ai.operation.name", _GEN_AI),
    ("langfuse.observation.type", _LANGFUSE),
    ("traceloop.span.kind", _TRACELOOP),
    ("llm.request.type", _REQUEST_TYPE),
)
# What a run of an agent has and a call of a model has not (pydantic-ai).
_AGENT = ("final_result", "pydantic_ai.all_messages", "all_messages_events")
_TOOL = ("gen_ai.tool.call.id", "gen_ai.tool.name", "tool.name")
_MODEL = (
    "gen_ai.request.model",
    "gen_ai.response.model",
    "llm.model_name",
    "llm.request.model",
    "llm.response.model",
    "langfuse.observation.model.name",
    "ai.model.id",
)
_SIGNS = (
    "gen_ai.usage.",
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.prompt",
    "gen_ai.completion",
    "gen_ai.tool.definitions",
    "llm.token_count.",
    "llm.usage.",
    "llm.input_messages.",
    "llm.output_messages.",
    "llm.prompts",
    "ai.usage.",
    "ai.prompt.messages",
    "ai.response.text",
    "langfuse.observation.usage_details",
)
_EVENTS = ("gen_ai.",)


def kind_of(span: Span) -> Kind:
    """Return what a span is."""
    return next(_said(span.attributes), None) or _by_signs(span)


def _said(attributes: Attributes) -> Iterator[Kind]:
    """Yield what the span says of itself, the most exact word first."""
    if (operation := operation_of(attributes)) is not None:
        yield _AI_SDK.get(operation, Kind.OTHER)
    for name, table in _TABLES:
        word = text(attributes, name)
        if name == "openinference.span.kind":
            word = word.upper()
        if word in table:
            yield table[word]
        elif word and name in ("openinference.span.kind", "langfuse.observation.type"):
            # RETRIEVER, GUARDRAIL, span, event, …: closed lists, so it is none of the above.
            yield Kind.OTHER


def operation_of(attributes: Attributes) -> str | None:
    """Return the AI SDK's operation without what is before its last dot; None: not the AI SDK's."""
    said = text(attributes, "ai.operationId")
    if not said:
        said = text(attributes, "operation.name").partition(" ")[0]
        if not said.startswith("ai."):
            return None
    return said.rpartition(".")[2]


def _by_signs(span: Span) -> Kind:
    attributes = span.attributes
    if any(name in attributes for name in _AGENT):
        return Kind.WRAPPER
    if any(name in attributes for name in _TOOL):
        return Kind.TOOL
    if text(attributes, *_MODEL) or any(name.startswith(_SIGNS) for name in attributes):
        return Kind.CALL
    return Kind.CALL if any(e.name.startswith(_EVENTS) for e in span.events) else Kind.OTHER
