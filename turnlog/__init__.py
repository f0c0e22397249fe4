"""What a gateway imports: `from turnlog import Producer`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnlog.producer import Producer

__all__ = ["Producer"]


def __getattr__(name: str) -> Any:
    # Kafka's client and the price book take most of a second to import; `import turnlog` does not.
    if name == "Producer":
        from turnlog.producer import Producer

        return Producer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
