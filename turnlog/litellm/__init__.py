"""The logger for LiteLLM, its proxy and its SDK.

In the proxy's config, with nothing else to install than the gateway wheel:

```yaml
litellm_settings:
  callbacks: turnlog.litellm.logger
```

In a program: `litellm.callbacks = [turnlog.litellm.logger]`. docs/litellm.md says what is recorded.
"""

from typing import Any

_made: dict[str, Any] = {}


def __getattr__(name: str) -> Any:
    # Made when it is first asked for: without LiteLLM this module can be imported all the same.
    if name != "logger":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _made:
        from turnlog.litellm.hooks import make_logger

        _made.setdefault(name, make_logger())
    return _made[name]
