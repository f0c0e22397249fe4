"""What an operator calls a thing by: its id, or the value from which a client's id was made."""

from streams.keys_reader import KeyReader
from turnlog.config import Config
from turnlog.errors import KeyUnavailable
from turnlog.ids import client_id, is_id


def identified(config: Config, org: str, kind: str, value: str) -> str:
    """Return the id under which a client's own value is stored, "" where there can be none.

    Args:
        config: where the parts are.
        org: whose it is.
        kind: what is named: "run", "conversation", "user".
        value: the id, or what a client called it.

    Raises:
        Unavailable: Kafka does not answer.
    """
    if is_id(value):
        return value
    try:
        with KeyReader(config, [org]) as keys:
            return client_id(value, keys.id_key(org), kind)
    except (KeyUnavailable, UnicodeEncodeError):
        # An id key is made with its org: there is no such org. What is no text names nothing.
        return ""
