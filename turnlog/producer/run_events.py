"""The events of one run: numbered by topic, sealed under the run's two keys."""

import asyncio
from collections.abc import Mapping
from time import time_ns
from typing import Any

from turnlog.events import TYPES
from turnlog.ids import event_id_under, event_prefix
from turnlog.keys import Locator, Sealer, Subject
from turnlog.producer.fields import Began
from turnlog.producer.transport import Position
from turnlog.producer.writer import Stream, Way, Writer


class RunEvents(Stream):
    """Writes the events of one run, the only writer of its epoch.

    Attributes:
        locator: the run's key locator, fixed now and copied by all its events.
    """

    def __init__(self, writer: Writer, began: Began) -> None:
        common = began.common
        self._subject = Subject(
            common["org"], common["user"], common["conversation"], common["run"], "o"
        )
        self.locator: Locator = began.locator or writer.grant.begin(
            common["org"],
            common["project"],
            user=common["user"],
            conversation=common["conversation"],
            subject_id=common["run"],
            kind="o",
        )
        tree, day, gen = self.locator
        located = {"key_tree": tree, "key_day": day, "key_gen": gen}
        super().__init__(writer, common | located, common["run"])
        self._epoch: int = common["writer_epoch"]
        self._sealers: dict[str, Sealer] = {}
        self._next_seqs: dict[str, list[int]] = {}

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
        way = self._ways.get(type) or self.way(type)
        next_seq = way.next_seq
        seq = own["seq"] = next_seq[0]
        own["event_id"] = event_id_under(way.prefix, f"{self._epoch}/{seq}")
        if "occurred_at_us" not in own:
            own["occurred_at_us"] = time_ns() // 1000
        sealer = (self._sealers.get(kind) or self._derive(kind)) if content else None
        future = self.hand_over(way, type, own, content, sealer)
        next_seq[0] = seq + 1
        return future

    async def put_large(
        self, type: str, own: dict[str, Any], content: Mapping[str, Any], kind: str = "o"
    ) -> asyncio.Future[Position]:
        """Do as `put` with content that may be too large for a record; seal it in a thread.

        The caller sees to it that no other event of the topic is written meanwhile.

        Raises:
            TooLarge: the content is over 64 MiB, or does not fit a frame and S3 has no address.
        """
        way = self.way(type)
        seq = own["seq"] = way.next_seq[0]
        own["event_id"] = event_id_under(way.prefix, f"{self._epoch}/{seq}")
        own["occurred_at_us"] = time_ns() // 1000
        sealer = self._sealers.get(kind) or self._derive(kind)
        future = await self.hand_over_large(way, type, own, content, sealer)
        way.next_seq[0] = seq + 1
        return future

    def beat(self, output_chars: int) -> asyncio.Future[Position]:
        """Write a heartbeat, which has no number."""
        way = self.way("run.heartbeat")
        now_us = time_ns() // 1000
        own = {
            "output_chars": output_chars,
            "occurred_at_us": now_us,
            "event_id": event_id_under(way.prefix, f"{self._epoch}/hb/{now_us}"),
        }
        return self.hand_over(way, "run.heartbeat", own, None, None)

    def _new_way(self, type: str) -> Way:
        way = super()._new_way(type)
        way.prefix = event_prefix(self._subject.org, self._subject_id, type)
        way.next_seq = self._next_seqs.setdefault(TYPES[type].topic, way.next_seq)
        return way

    def _derive(self, kind: str) -> Sealer:
        key = self._writer.grant.data_key(self.locator, self._subject._replace(kind=kind))
        sealer = self._sealers[kind] = self.sealer(key)
        return sealer
