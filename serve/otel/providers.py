"""Who served a call, and under which id the price book has them."""

from serve.otel.attributes import Attributes, first, plain, text
from serve.otel.values import whole
from turnlog.producer.usage import Spoke, source_of
from turnlog.providers.usage import provider_id

_NAMED = (
    "gen_ai.provider.name",
    "gen_ai.system",
    "llm.provider",
    "llm.system",
    "ai.model.provider",
    "llm.vendor",
    "gen_ai.request.provider",
)
_HOST = ("server.address", "net.peer.name", "http.host", "url.domain")
# Names of the semantic conventions (v1.26 to v1.37), of OpenInference, of OpenLLMetry and of the AI
# SDK (before its first dot), onto ids of genai-prices.
_IDS = {
    "openai": "openai",
    "anthropic": "anthropic",
    "aws.bedrock": "aws",
    "aws_bedrock": "aws",
    "amazon-bedrock": "aws",
    "bedrock": "aws",
    "aws": "aws",
    "az.ai.openai": "azure",
    "azure.ai.openai": "azure",
    "az.ai.inference": "azure",
    "azure.ai.inference": "azure",
    "azure-openai": "azure",
    "azure_openai": "azure",
    "azure": "azure",
    "gcp.vertex_ai": "google",
    "gcp.gemini": "google",
    "gcp.gen_ai": "google",
    "gcp.vertex.agent": "google",
    "vertex_ai": "google",
    "vertexai": "google",
    "gemini": "google",
    "google": "google",
    "google_genai": "google",
    "google-vertex": "google",
    "google.generative-ai": "google",
    "google.vertex": "google",
    "cohere": "cohere",
    "mistral": "mistral",
    "mistral_ai": "mistral",
    "mistralai": "mistral",
    "groq": "groq",
    "deepseek": "deepseek",
    "perplexity": "perplexity",
    "x_ai": "x-ai",
    "xai": "x-ai",
    "x-ai": "x-ai",
    "openrouter": "openrouter",
    "together_ai": "together",
    "togetherai": "together",
    "together": "together",
    "fireworks": "fireworks",
    "fireworks_ai": "fireworks",
    "cerebras": "cerebras",
}


def provider_of(attributes: Attributes) -> str:
    """Return the name that the span gives the provider; empty where it gives none."""
    return text(attributes, *_NAMED)


def price_id(attributes: Attributes) -> str:
    """Return the id in the price book; empty: unknown, or a server on this machine."""
    host = text(attributes, *_HOST)
    if host:
        found = provider_id(source_of(Spoke("", "", host=host, path="/"), 200, b"", b""))
        if found or _is_local(host):
            return found
    named = provider_of(attributes).lower()
    while named:
        if named in _IDS:
            return _IDS[named]
        named = named.rpartition(".")[0]
    return ""


def _is_local(host: str) -> bool:
    return host.startswith(("localhost", "127.", "[::1]", "::1", "0.0.0.0"))


def http_status(attributes: Attributes) -> int:
    """Return the status of the provider's answer, 0 where the span does not say."""
    found = first(attributes, "http.response.status_code", "http.status_code")
    status = whole(found) if found is not None else None
    if status is None and (said := plain(attributes.get("error.type"))).isdecimal():
        status = int(said) if len(said) == 3 else None
    return status if status is not None and 100 <= status <= 599 else 0
