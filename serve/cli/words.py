"""What Kafka's client calls by a constant, said to people in words."""

import re

from turnlog.config import load
from turnlog.errors import UsageError

# Constants of librdkafka's own errors (rdkafka.h) that come through as they are.
_WORDS = {
    "_ALL_BROKERS_DOWN": "no broker can be reached",
    "_AUTHENTICATION": "it refused the credentials",
    "_DESTROY_BROKER": "the connection was given up",
    "_FAIL": "the connection failed",
    "_MSG_TIMED_OUT": "it did not acknowledge in time",
    "_RESOLVE": "its host name is not known",
    "_SSL": "TLS failed",
    "_TIMED_OUT": "no answer in time",
    "_TIMED_OUT_QUEUE": "no answer in time",
    "_TRANSPORT": "no connection",
    "_WAIT_COORD": "the group has no coordinator yet",
}
_NAME = re.compile(r"(?<!\w)_[A-Z]+(?:_[A-Z]+)*\b")
_SILENT = re.compile(r"\bkafka (does not answer|failed)\b", re.IGNORECASE)


def in_words(message: str) -> str:
    """Return a message with Kafka's constants in words, and with the address that is silent."""
    said = _NAME.sub(lambda found: _WORDS.get(found[0], found[0]), message)
    return _SILENT.sub(lambda found: f"Kafka {found[1]}{_where()}", said)


def _where() -> str:
    try:
        address = load().kafka
    except UsageError:
        return ""
    return f" at {address}" if address else ""
