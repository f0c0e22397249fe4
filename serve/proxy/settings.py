"""What the operator of a proxy says; nothing that a client sends changes it."""

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from turnlog.errors import UsageError

PROVIDERS = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "google",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "api.cohere.com": "cohere",
    "api.deepseek.com": "deepseek",
    "api.together.xyz": "together",
    "openrouter.ai": "openrouter",
}

OnUnavailable = Literal["pass", "refuse"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How one proxy runs.

    Attributes:
        upstream: base URL of the provider, without a slash at its end.
        org: org of the operator's credential.
        provider: its name in the record; found by `upstream` where it is not given.
        project: of the org, where a request names none.
        drain_s: how long the provider is read on after the client has left; 0: not at all, as a
            proxy that records nothing would do.
        on_unavailable: what happens to a call that cannot be recorded: it passes unrecorded, or it
            is refused.
        grace_s: how long open calls may go on once the proxy is told to stop.
    """

    upstream: str
    org: str = "local"
    provider: str = ""
    project: str = "default"
    drain_s: float = 0.0
    on_unavailable: OnUnavailable = "pass"
    grace_s: float = 30.0

    @property
    def authority(self) -> str:
        """Host and port of the provider, as the Host header has them."""
        return urlsplit(self.upstream).netloc

    @property
    def base_path(self) -> str:
        """Path of the base URL, which every request's path is put behind."""
        return urlsplit(self.upstream).path

    @property
    def provider_name(self) -> str:
        """Name of the provider, the host where nothing better is known."""
        host = urlsplit(self.upstream).hostname or ""
        return self.provider or PROVIDERS.get(host, host)


def checked_upstream(url: str) -> str:
    """Return a base URL without the slash at its end.

    Raises:
        UsageError: it is no http(s) URL, or it holds credentials, a query or a fragment.
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known or any(c.isspace() or not c.isprintable() for c in url):
        raise UsageError("--upstream is a base URL such as https://api.openai.com")
    if parts.username is not None or parts.password is not None:
        raise UsageError("--upstream holds no credentials: clients send theirs in headers")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise UsageError("--upstream has no query and no fragment")
    return url.rstrip("/")
