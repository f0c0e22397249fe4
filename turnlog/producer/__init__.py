"""Writing runs and turns: `Producer` and what it hands out."""

from turnlog.producer.client import Producer
from turnlog.producer.fields import RunFields
from turnlog.producer.run import Run
from turnlog.producer.sync import SyncProducer, SyncRun
from turnlog.producer.transport import Position, Transport
from turnlog.producer.turns import Turn, TurnFields

__all__ = [
    "Position",
    "Producer",
    "Run",
    "RunFields",
    "SyncProducer",
    "SyncRun",
    "Transport",
    "Turn",
    "TurnFields",
]
