"""How the parts are that a server leans on, asked at most once a second."""

import asyncio
import http.client
import time
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from redis.asyncio import Redis
from redis.exceptions import RedisError

from serve.doors.directory import STALE_S, TOPIC, Follower
from turnlog.config import Config
from turnlog.errors import UsageError
from turnlog.kafka import client_settings

ASK_EVERY_S = 1.0
"""Anyone may ask; the parts are asked so often at most."""

ANSWER_S = 1.0


class Parts:
    """Knows how old the API keys are, and asks Kafka, the key keeper and Redis.

    Args:
        config: where Kafka and the keeper are.
        redis: asked.
        follower: of the directory that holds the keys; None: they do not come from there.
    """

    def __init__(self, config: Config, redis: Redis, follower: Follower | None = None) -> None:
        self._config = config
        self._redis = redis
        self._follower = follower
        self._asked: asyncio.Task[dict[str, bool]] | None = None
        self._asked_at_s = 0.0
        self._kafka: AdminClient | None = None

    def keys(self) -> dict[str, Any]:
        """Return whether the API keys are known, and how old that knowledge is, in seconds."""
        age_s = None if self._follower is None else self._follower.age_s
        if age_s is None:
            return {"state": "unknown", "age_s": None}
        return {"state": "stale" if age_s > STALE_S else "ok", "age_s": round(age_s, 1)}

    async def answering(self) -> dict[str, bool]:
        """Return which of the parts answer, as known within the last second."""
        if self._asked is None or time.monotonic() - self._asked_at_s > ASK_EVERY_S:
            self._asked_at_s = time.monotonic()
            self._asked = asyncio.create_task(self._ask(), name="turnlog-health")
        return await asyncio.shield(self._asked)

    async def _ask(self) -> dict[str, bool]:
        kafka, keeper, redis = await asyncio.gather(
            asyncio.to_thread(self._kafka_answers),
            asyncio.to_thread(_keeper_answers, self._config.keeper),
            _redis_answers(self._redis),
        )
        return {"kafka": kafka, "keeper": keeper, "redis": redis}

    def _kafka_answers(self) -> bool:
        """Ask for a topic's metadata: what the producers know is as old as their last event."""
        try:
            if self._kafka is None:
                # Its remarks would be kept until somebody asks, and the others' say the same.
                self._kafka = AdminClient({**client_settings(self._config), "log_level": 0})
            self._kafka.list_topics(TOPIC, timeout=ANSWER_S)
        except (KafkaException, UsageError):
            return False
        return True


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
