"""The events of one run: numbered by topic, sealed under the run's two keys."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from turnlog.events import TYPES
from turnlog.ids import event_id_under, event_prefix
from turnlog.keys import DataKey, Locator, Subject
from turnlog.producer.fields import Began
from turnlog.producer.transport import Position
from turnlog.producer.writer import Stream, Writer

_TOPICS = {name: kind.topic for name, kind in TYPES.items()}


class RunEvents:
    """Writes the events of one run, the only writer of its epoch.

    Attributes:
        locator: the run's key locator, fixed now and copied by all its events.
        shared: fields that all of them have in common.
    """

    def __init__(self, writer: Writer, began: Began) -> None:
        common = began.common
        self._writer = writer
        self._org: str = common["org"]
        self._user: str = common["user"]
        self._conversation: str = common["conversation"]
        self._run: str = common["run"]
        self._epoch: int = common["writer_epoch"]
        self.locator: Locator = writer.grant.begin(
            self._org,
            common["project"],
            user=self._user,
            conversation=self._conversation,
            subject_id=self._run,
            kind="o",
        )
        tree, day, gen = self.locator
        self.shared = {**common, "key_tree": tree, "key_day": day, "key_gen": gen}
        self._stream = Stream(writer, self.shared, self._run)
        self._keys: dict[str, DataKey] = {}
        self._next_seq: dict[str, int] = {}
        self._prefixes: dict[str, bytes] = {}

    def put(
        self,
        type: str,
        own: dict[str, Any],
        content: Mapping[str, Any] | None = None,
        kind: str = "o",
    ) -> asyncio.Future[Position]:
        """Write the next event of its topic.

        Args:
            type: event type.
            own: its own fields; `occurred_at_us` is now when left out.
            content: content fields, None or empty where there are none.
            kind: which of the run's keys seals them, `o` or `q`.

        Raises:
            UsageError: a field does not fit.
            TooLarge: the content does not fit a frame; nothing is written, no number is used.
            Unavailable: the transport takes nothing.
        """
        topic = _TOPICS[type]
        seq = self._next_seq.get(topic, 0)
        own["seq"] = seq
        future = self._send(type, f"{self._epoch}/{seq}", own, content, kind)
        self._next_seq[topic] = seq + 1
        return future

    def beat(self, output_chars: int) -> asyncio.Future[Position]:
        """Write a heartbeat, which has no number."""
        now_us = time.time_ns() // 1000
        own = {"output_chars": output_chars, "occurred_at_us": now_us}
        return self._send("run.heartbeat", f"{self._epoch}/hb/{now_us}", own, None, "o")

    def _send(
        self,
        type: str,
        natural_id: str,
        own: dict[str, Any],
        content: Mapping[str, Any] | None,
        kind: str,
    ) -> asyncio.Future[Position]:
        prefix = self._prefixes.get(type)
        if prefix is None:
            prefix = self._prefixes[type] = event_prefix(self._org, self._run, type)
        own["event_id"] = event_id_under(prefix, natural_id)
        if "occurred_at_us" not in own:
            own["occurred_at_us"] = time.time_ns() // 1000
        if not content:
            return self._stream.put(type, own)
        key = self._keys.get(kind) or self._derive(kind)
        return self._stream.put(type, own, content, key)

    def _derive(self, kind: str) -> DataKey:
        subject = Subject(self._org, self._user, self._conversation, self._run, kind)
        key = self._keys[kind] = self._writer.grant.data_key(self.locator, subject)
        return key
