"""What the conversation fold decided about appends that ask for something (DESIGN.md section 4).

Log order is the arbiter: an append with `expected_last_seq`, `leaf_version` or `parent_turn` is
durable first and decided afterwards. Its sender is told when the fold says so within 2 s, else that
it is pending.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgpack
from redis.asyncio import Redis

from serve.appending.answers import CONFLICT, PENDING, Answer
from serve.appending.given import Draft
from serve.appending.seen import Patient
from sinks.redis.conversations import outcome_key

WAIT_S = 2.0
_POLL_S = 0.02

_ASKS = ("expected_last_seq", "leaf_version", "parent_turn")
_REASONS = {"conflict": "expected_last_seq", "no_parent": "parent_turn"}
_SHOWN = ("turn_seq", "last_seq", "leaf_version")


class Decisions:
    """Waits for what the fold publishes.

    Args:
        redis: bytes in, bytes out.
        patient: shared by all that ask the same Redis.
    """

    def __init__(self, redis: Redis, patient: Patient) -> None:
        self._redis = redis
        self._patient = patient

    async def awaited(
        self, org: str, drafts: Sequence[Draft | Answer], answers: list[Answer]
    ) -> list[Answer]:
        """Return the answers, those of appends that ask with what was decided."""
        asking = {
            n: answer
            for n, (draft, answer) in enumerate(zip(drafts, answers, strict=True))
            if answer.is_kept and isinstance(draft, Draft) and _asks(draft)
        }
        if not asking:
            return answers
        found = await self._found(org, asking)
        return [
            _decided(answer, found.get(n)) if n in asking else answer
            for n, answer in enumerate(answers)
        ]

    async def _found(self, org: str, asking: Mapping[int, Answer]) -> dict[int, dict[str, Any]]:
        keys = {n: key for n, answer in asking.items() if (key := _key(org, answer))}
        found: dict[int, dict[str, Any]] = {}
        until_s = time.monotonic() + WAIT_S
        while left := [n for n in keys if n not in found]:
            values = await self._patient.ask(self._asked([keys[n] for n in left]))
            for n, value in zip(left, values or (), strict=False):
                if value is not None:
                    found[n] = msgpack.unpackb(value)
            if values is None or time.monotonic() > until_s:
                break
            await asyncio.sleep(_POLL_S)
        return found

    async def _asked(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return cast(list[bytes | None], await self._redis.mget(keys))


def _asks(draft: Draft) -> bool:
    return any(draft.body.get(name) is not None for name in _ASKS)


def _key(org: str, answer: Answer) -> bytes | None:
    """Return where the decision about an event will stand; None while it is in the spool."""
    _, partition, offset = answer.position.rsplit("/", 2)
    return None if offset == "-1" else outcome_key(org, int(partition), int(offset))


def _decided(answer: Answer, said: Mapping[str, Any] | None) -> Answer:
    if said is None:
        return answer._replace(status=202, outcome=PENDING)
    shown = {name: said[name] for name in _SHOWN if name in said}
    if said["status"] == "accepted":
        return answer._replace(decision=shown)
    reason = said.get("reason", "")
    return answer._replace(
        status=409,
        outcome=CONFLICT,
        field=_REASONS.get(reason, ""),
        detail=f"the conversation refused it: {reason}",
        decision=shown,
    )
