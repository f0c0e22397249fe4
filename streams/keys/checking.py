"""`turnlog keys check` put together: one reading of the topic and what it is compared with."""

from collections.abc import Iterator
from datetime import date
from functools import cached_property
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from streams.keys.check import Check, Finding, LocalCopy, local_copies, stored_floors
from streams.keys.gone import (
    REMOTE,
    Kept,
    kept_in_copies,
    kept_in_files,
    kept_in_log,
    log_folder,
    stable_end,
)
from streams.keys.log import read_log
from streams.keys.segments import PartitionFiles
from streams.keys_reader import TOPIC, public_key, topic_id
from turnlog.config import Config
from turnlog.kafka import ANSWER_S, client_settings, partition_of, partitions_of, unavailable
from turnlog.keys.grant import day_of, now_us
from turnlog.keys.keyfile import load_key_file
from turnlog.keys.kms import LocalKms
from turnlog.keys.orgkeys import check_keys


class Checking:
    """One run of the check.

    Args:
        config: where Kafka is, the key file, and the home with floors and copies.
        org: only this org; "" for all.
        topic: of key rows.

    Raises:
        UsageError: the key file or the keeper's public key is missing or not that of the rows.
        Unavailable: Kafka does not answer.
    """

    def __init__(self, config: Config, org: str = "", topic: str = TOPIC) -> None:
        self._config = config
        self._org = org
        self._topic = topic
        kms = LocalKms(load_key_file(config.local_key_file))
        public, where = public_key(config)
        numbers = partitions_of(config, topic)
        self._partitions = [partition_of(org.encode(), len(numbers))] if org else numbers
        # Copies and floors first: what moves on in between is then newer in the topic, as it
        # always may be.
        self._copies = list(local_copies(config, (topic, topic_id(config, topic))))
        self._floors = stored_floors(config)
        self._log = read_log(config, topic, self._partitions)
        check_keys(self._log.rows(), kms, public, where)
        self._check = Check(self._log, kms, public, org)

    def findings(self, today: date | None = None) -> Iterator[Finding]:
        """Give everything that does not agree."""
        yield from self._check.topic(today or day_of(now_us()))
        yield from self._check.floors(self._floors)
        for copy in self._copies:
            yield from self._copy_findings(copy)

    def _copy_findings(self, copy: LocalCopy) -> Iterator[Finding]:
        if copy.why:
            yield Finding(self._org, "", "copy", f"{copy.role}: {copy.why}")
        elif copy.meta is not None:
            yield from self._check.copy(copy.role, copy.meta, copy.rows)

    def kept(self) -> Iterator[Kept]:
        """Give what still holds a head that is not the present one.

        A head behind the last stable offset counts as the present one: its transaction may have
        been committed long ago, and it is another, open one that hides it.
        """
        numbers = self._partitions
        stable = {number: stable_end(self._config, self._topic, number) for number in numbers}
        seen = read_log(self._config, self._topic, numbers, "read_uncommitted")
        present = self._log.with_open(seen, stable)
        yield from kept_in_copies(self._copies, present, self._org)
        if self._folder is None:
            yield from kept_in_log(present, seen, stable, self._org)
            return
        for number in numbers:
            files = PartitionFiles(self._folder, self._topic, number)
            yield from kept_in_files(files, stable[number], present, self._org)

    @cached_property
    def _folder(self) -> Any:
        # The client must live until it has answered.
        admin = AdminClient(client_settings(self._config))
        try:
            asked = admin.describe_cluster(request_timeout=ANSWER_S)
            return log_folder(self._config, asked.result(ANSWER_S).cluster_id)
        except KafkaException as error:
            raise unavailable(error) from error

    def summary(self, count: int, gone: bool) -> dict[str, Any]:
        """Return what was looked at, and how many lines came of it."""
        if gone:
            return {"kept": count, "unseen": "" if self._folder else REMOTE}
        looked = self._check.checked
        return {
            "findings": count,
            "trees": looked.trees,
            "pages": looked.pages,
            "orphans": looked.orphans,
            "copies": looked.copies,
        }
