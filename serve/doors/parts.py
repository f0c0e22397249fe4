"""How the parts are that a server leans on, asked at most once a second."""

import asyncio
import http.client
import time
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.exceptions import RedisError

from serve.doors.directory import STALE_S, Follower
from turnlog.config import Config

ASK_EVERY_S = 1.0
"""Anyone may ask; the parts are asked so often at most."""

ANSWER_S = 1.0


class Parts:
    """Knows how old the API keys are, and asks the key keeper and Redis.

    Args:
        config: where the keeper is.
        redis: asked.
        follower: of the directory that holds the keys; None: they do not come from there.
    """

    def __init__(self, config: Config, redis: Redis, follower: Follower | None = None) -> None:
        self._config = config
        self._redis = redis
        self._follower = follower
        self._asked: asyncio.Task[dict[str, bool]] | None = None
        self._asked_at_s = 0.0

    def keys(self) -> dict[str, Any]:
        """Return whether the API keys are known, and how old that knowledge is, in seconds."""
        age_s = None if self._follower is None else self._follower.age_s
        if age_s is None:
            return {"state": "unknown", "age_s": None}
        return {"state": "stale" if age_s > STALE_S else "ok", "age_s": round(age_s, 1)}

    async def answering(self) -> dict[str, bool]:
        """Return whether the key keeper and Redis answer, as known within the last second."""
        if self._asked is None or time.monotonic() - self._asked_at_s > ASK_EVERY_S:
            self._asked_at_s = time.monotonic()
            self._asked = asyncio.create_task(self._ask(), name="turnlog-health")
        return await asyncio.shield(self._asked)

    async def _ask(self) -> dict[str, bool]:
        keeper, redis = await asyncio.gather(
            asyncio.to_thread(_keeper_answers, self._config.keeper), _redis_answers(self._redis)
        )
        return {"keeper": keeper, "redis": redis}


def _keeper_answers(address: str) -> bool:
    if not address:
        return False
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


async def _redis_answers(redis: Redis) -> bool:
    try:
        async with asyncio.timeout(ANSWER_S):
            return bool(await redis.ping())
    except (RedisError, OSError, TimeoutError):
        return False
