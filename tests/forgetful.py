"""A librdkafka that takes records for written which are not, as the real one does now and then.

It happens when a leadership moves while the first batches of a new producer are on their way
(`turnlog.kafka.not_written`); to have it each time, reports of success without an offset are made
here for records that were never handed to the real one.
"""

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

Report = Callable[[KafkaError | None, Message], None]


class Forgetful(Producer):
    """Forgets as many of the next records as `forgets` says, and reports them as delivered.

    Attributes:
        forgets: how many are still to be forgotten, of all producers of this class.
        late: keep the reports of what was forgotten back.
    """

    forgets = 0
    late = False

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._owed: list[tuple[Report, str]] = []

    def produce(self, topic: str, *arguments: Any, **options: Any) -> None:
        """Take a record."""
        if type(self).forgets <= 0:
            super().produce(topic, *arguments, **options)
            return
        type(self).forgets -= 1
        # `value, key, partition, on_delivery`, as librdkafka's binding takes them
        report = options["on_delivery"] if "on_delivery" in options else arguments[3]
        self._owed.append((report, topic))

    def poll(self, *arguments: Any, **options: Any) -> int:
        """Hand out reports."""
        if not type(self).late:
            owed, self._owed = self._owed, []
            for report, topic in owed:
                report(None, Message(topic=topic, partition=0))
        return super().poll(*arguments, **options)

    def flush(self, *arguments: Any, **options: Any) -> int:
        """Wait for reports."""
        self.poll(0)
        return super().flush(*arguments, **options)
