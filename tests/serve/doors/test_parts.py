"""How the parts are, as `/readyz` says it, while nothing is sent."""

import asyncio

from local import stack as local_stack
from serve.doors.parts import Parts
from sinks.redis import connect_async
from tests.conftest import running_stack


async def test_kafka_that_goes_away_and_comes_back_is_known_without_an_event() -> None:
    with running_stack(("kafka",)) as config:
        redis = connect_async(config.model_copy(update={"redis": "redis://127.0.0.1:1/0"}), 0.5)
        parts = Parts(config, redis)
        assert await says(parts, True)
        await asyncio.to_thread(local_stack.down, config, ["kafka"])
        assert await says(parts, False)
        await asyncio.to_thread(local_stack.up, config, ["kafka"])
        assert await says(parts, True)
        await redis.aclose()


async def says(parts: Parts, kafka: bool) -> bool:
    """Ask for up to 10 s, as a probe does."""
    for _ in range(10):
        if (await parts.answering())["kafka"] is kafka:
            return True
        await asyncio.sleep(1)
    return False
