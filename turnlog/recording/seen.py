"""What is known of an exchange before its request goes out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Required, Self, TypedDict, Unpack, cast
from urllib.parse import parse_qsl, urlencode

from turnlog.producer import RunFields
from turnlog.producer.fields import DEFAULT_PROJECT
from turnlog.producer.usage import Spoke, source_of
from turnlog.providers import Message
from turnlog.providers.requests import last_message, model_of, parse

# Parameters of providers' addresses that say how, and never who: all others may hold a key.
_PLAIN_PARAMETERS = frozenset(("alt", "$alt", "api-version", "beta", "prettyPrint"))
_STREAMS = (":streamgeneratecontent", "/converse-stream", "/invoke-with-response-stream")


class About(TypedDict, total=False):
    """What a run is about, as `turnlog.producer.RunFields` describes it."""

    project: str
    user: str
    conversation: str
    run_group: str
    region: str
    versions: Mapping[str, str]
    idempotency_key: str
    parent_run: str
    correlation_id: str
    causation_id: str
    traceparent: str


class Who(About, total=False):
    """The same with the org, which must be given, and the run's id."""

    org: Required[str]
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A request and for whom it is; the fields are those of `turnlog.producer.RunFields`.

    Attributes:
        request: its body, as the provider gets it; empty where it is not kept.
        path: with the query, without secrets: see `without_secrets`.
        input: text of the last user or tool message: the input turn, where there is a conversation.
    """

    org: str
    project: str = DEFAULT_PROJECT
    user: str = ""
    conversation: str = ""
    run: str = ""
    run_group: str = ""
    region: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str = ""
    parent_run: str = ""
    correlation_id: str = ""
    causation_id: str = ""
    traceparent: str = ""
    provider: str = ""
    model: str = ""
    method: str = "POST"
    host: str = ""
    path: str = ""
    content_type: str = ""
    request: bytes = b""
    streaming: bool = False
    input: str = ""
    input_role: str = "user"

    @classmethod
    def of(
        cls,
        *,
        provider: str,
        method: str,
        host: str,
        path: str,
        request: bytes,
        content_type: str = "",
        **who: Unpack[Who],
    ) -> Self:
        """Return what a request says: model, whether it asks for a stream, the last message.

        Args:
            provider: name of the provider, such as `openai`.
            method: HTTP method.
            host: HTTP host, with its port where that is not the scheme's.
            path: path and query as they go out; secrets are taken out here.
            request: the body.
            content_type: of the body.
            **who: for whom the run is.
        """
        path = without_secrets(path)
        spoke = Spoke(provider, "", method, host, path)
        source = replace(
            source_of(spoke, 0, request, b""), request_content_type=content_type.lower()
        )
        asked = parse(source)
        said = last_message(asked) or Message("user", "")
        return cls(
            provider=provider,
            model=model_of(source, asked),
            method=method,
            host=host,
            path=path,
            content_type=content_type,
            request=request,
            streaming=asked.get("stream") is True or source.route.endswith(_STREAMS),
            input=said.text,
            input_role=said.role,
            **who,
        )

    def run_fields(self) -> RunFields:
        """Return the fields of the run: those that say something."""
        given: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        if not self.conversation or not self.input:
            given["input"] = given["input_role"] = ""
        return cast(RunFields, {name: value for name, value in given.items() if value})


def without_secrets(path: str) -> str:
    """Return a path whose query has only parameters that are known to hold no secret.

    Gemini takes its API key as `key=`, others take tokens and signatures; an allow-list cannot miss
    the next one.
    """
    route, mark, query = path.partition("?")
    if not mark:
        return route
    kept = [pair for pair in parse_qsl(query) if pair[0] in _PLAIN_PARAMETERS]
    return f"{route}?{urlencode(kept)}" if kept else route
