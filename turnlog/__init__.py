"""What a gateway imports: `from turnlog import Producer`, or `SyncProducer` without asyncio.

`turnlog.wrap(client)` is for those who call a provider by its official Python client.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnlog.clients import annotate, wrap
    from turnlog.producer import Producer, SyncProducer

__all__ = ["Producer", "SyncProducer", "annotate", "wrap"]


def __getattr__(name: str) -> Any:
    # Kafka's client and the price book take most of a second to import; `import turnlog` does not.
    if name in ("annotate", "wrap"):
        from turnlog import clients

        return getattr(clients, name)
    if name in __all__:
        from turnlog import producer

        return getattr(producer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
