"""Reading recorded provider traffic: one line in, one `Exchange` out. No I/O, no clock."""

from turnlog.providers.exchange import CLASSES, Choice, Chunk, Exchange, Message, ToolCall, Usage
from turnlog.providers.read import read_exchange, understand
from turnlog.providers.source import BadLine, Source, read_source

__all__ = [
    "CLASSES",
    "BadLine",
    "Choice",
    "Chunk",
    "Exchange",
    "Message",
    "Source",
    "ToolCall",
    "Usage",
    "read_exchange",
    "read_source",
    "understand",
]
