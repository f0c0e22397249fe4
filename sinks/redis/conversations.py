"""Conversations in Redis: one hash a conversation, and what became of each append.

`{org}/conversation/{conversation}` is a hash, kept for 24 h after its last write:

| field | value |
|---|---|
| `head` | the head row, msgpack |
| `applied` | the offset that the head is at, decimal |
| `t:{turn}` | the turn's row, msgpack |
| `f:{turn}` | the frame of a turn that has a text of its own |
| `f` | the frame of the `conversation.created` event, if it has one |

Frames have a field of their own because a row changes later, when an import puts a turn before it,
and the frame is not at hand then. A hash may be incomplete (Redis lost it and a new turn came): it
is whole only if it has as many turns as its head says.

`{org}/outcome/{partition}/{offset}` holds for an hour what the fold decided about the append that
stands there in `turnlog.turns`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import cast

from redis import Redis
from redis.exceptions import RedisError

from turnlog.errors import Unavailable

HOT_S = 24 * 3600
OUTCOME_S = 3600

HEAD = b"head"
APPLIED = b"applied"
CREATED_FRAME = b"f"
TURN = b"t:"
FRAME = b"f:"

Fields = Mapping[bytes, bytes]

# The hash is replaced unless the worker has written a later state in the meantime. HSET takes the
# fields in portions, because Lua cannot unpack more than about 8,000 values.
_REPLACE = """
local held = redis.call('HGET', KEYS[1], 'applied')
if held and tonumber(held) > tonumber(ARGV[1]) then return 0 end
redis.call('DEL', KEYS[1])
for at = 3, #ARGV, 1000 do
  redis.call('HSET', KEYS[1], unpack(ARGV, at, math.min(at + 999, #ARGV)))
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""


def hash_key(stream: bytes) -> bytes:
    """Return the key of a conversation's hash; it begins with the org."""
    org, _, conversation = stream.partition(b"/")
    return b"%b/conversation/%b" % (org, conversation)


def outcome_key(org: str, partition: int, offset: int) -> bytes:
    """Return the key of an append's outcome; it begins with the org."""
    return f"{org}/outcome/{partition}/{offset}".encode()


def turn_field(turn: str) -> bytes:
    """Return the field of a turn's row."""
    return TURN + turn.encode()


def frame_field(turn: str) -> bytes:
    """Return the field of a turn's frame."""
    return FRAME + turn.encode()


class Conversations:
    """Writes and reads the hashes and outcomes."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._replace = redis.register_script(_REPLACE)

    def write(self, hashes: Mapping[bytes, Fields], outcomes: Mapping[bytes, bytes]) -> None:
        """Write what changed, in one round trip: one HSET a conversation.

        Args:
            hashes: `{stream key: changed fields}`.
            outcomes: `{outcome key: value}`.

        Raises:
            Unavailable: Redis does not answer; nothing or a part is written, and the same call
                again completes it.
        """
        with _answering():
            pipeline = self._redis.pipeline(transaction=False)
            for stream, fields in hashes.items():
                pipeline.hset(hash_key(stream), items=[*chain(*fields.items())])
                pipeline.expire(hash_key(stream), HOT_S)
            for key, value in outcomes.items():
                pipeline.set(key, value, ex=OUTCOME_S)
            pipeline.execute()

    def read(self, stream: bytes) -> dict[bytes, bytes]:
        """Return all fields of a conversation's hash, none where there is no hash.

        Raises:
            Unavailable: Redis does not answer.
        """
        with _answering():
            return cast(dict[bytes, bytes], self._redis.hgetall(hash_key(stream)))

    def outcome(self, org: str, partition: int, offset: int) -> bytes | None:
        """Return what was decided about an append within the last hour.

        Raises:
            Unavailable: Redis does not answer.
        """
        with _answering():
            return cast(bytes | None, self._redis.get(outcome_key(org, partition, offset)))

    def replace(self, stream: bytes, applied: int, fields: Fields) -> bool:
        """Put a rebuilt hash in place of what is there, unless that is at a later offset.

        Returns:
            Whether it was replaced.

        Raises:
            Unavailable: Redis does not answer.
        """
        arguments: list[bytes | int] = [applied, HOT_S]
        arguments.extend(chain(*fields.items()))
        with _answering():
            return bool(self._replace(keys=[hash_key(stream)], args=arguments))


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise Unavailable(f"redis does not answer: {type(error).__name__}") from error
