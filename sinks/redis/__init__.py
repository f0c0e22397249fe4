"""Read models in Redis. They are expendable: whatever is lost is folded again from the log."""

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff, NoBackoff
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


def connect_async(config: Config, answer_s: float = ANSWER_S) -> AsyncRedis:
    """Return a client for an event loop, which retries nothing: its caller goes on without.

    Args:
        config: where Redis is.
        answer_s: how long it may take over a command before it counts as away.

    Raises:
        UsageError: Redis has no address.
    """
    return AsyncRedis.from_url(
        config.need("redis"),
        socket_timeout=answer_s,
        socket_connect_timeout=answer_s,
        retry=AsyncRetry(NoBackoff(), 0),
    )
