"""Read models in Redis. They are expendable: whatever is lost is folded again from the log."""

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError, TimeoutError
from redis.retry import Retry

from turnlog.config import Config

ANSWER_S = 5.0


def connect(config: Config) -> Redis:
    """Return a client; it connects at its first command and retries a lost connection twice.

    Raises:
        UsageError: Redis has no address.
    """
    return Redis.from_url(
        config.need("redis"),
        socket_timeout=ANSWER_S,
        socket_connect_timeout=ANSWER_S,
        retry=Retry(ExponentialBackoff(cap=0.2, base=0.05), 2),
        retry_on_error=[ConnectionError, TimeoutError],
    )
