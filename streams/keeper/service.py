"""The keeper's work: create an org or project, mint, puncture, grant, set and revoke API keys."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from streams.keeper.apikeys import revoking, setting
from streams.keeper.directory import Directory, Known, missing, records
from streams.keeper.granting import org_grant
from streams.keeper.minting import AHEAD_DAYS, SHORT_DAYS, OrgBook, minted_ahead, plan
from streams.keeper.partition import KeyPartition
from streams.keeper.puncturing import Result, plan_punctures
from streams.keeper.state import Project
from turnlog.apikeys import ApiKey
from turnlog.errors import KeyUnavailable, Unavailable
from turnlog.kafka import partition_of
from turnlog.keys.grant import GRANT_SECONDS, Grant, day_of, now_us
from turnlog.keys.keyfile import KeyFile
from turnlog.keys.kms import Kms
from turnlog.keys.mint import Sealer
from turnlog.keys.orgkeys import OrgKeys
from turnlog.keys.rows import (
    ZERO_DIGEST,
    HeadLabel,
    Row,
    WrappedKey,
    id_row_key,
    seal_id_key,
    wrapping_row,
)
from turnlog.keys.targets import Target

logger = logging.getLogger(__name__)

HEARTBEAT_KEY = b"heartbeat"
"""Not the key of any row: those have a slash."""

_PROJECTS_A_TRANSACTION = 100


class Minted(NamedTuple):
    """What one round of minting did.

    Attributes:
        days: days that were minted.
        short: projects with less than 7 days ahead afterwards.
    """

    days: int
    short: list[Project]


class Keeper:
    """Keeps the keys of the orgs whose rows lie in the given partitions.

    `grant` may be called from any thread; all that writes from one at a time.

    Args:
        partitions: all partitions of `turnlog.keys`, taken over, by number.
        directory: read to its end.
        kms: wraps the orgs' keys.
        key_file: has the keeper's signing key.
        retention_class: of new projects.
        clock_us: UTC microseconds.
    """

    def __init__(
        self,
        partitions: Mapping[int, KeyPartition],
        directory: Directory,
        kms: Kms,
        key_file: KeyFile,
        *,
        retention_class: str = "standard",
        clock_us: Callable[[], int] = now_us,
    ) -> None:
        self.partitions = partitions
        self.directory = directory
        self.kms = kms
        self.signer = key_file.signer
        self.retention_class = retention_class
        self.clock_us = clock_us
        self._org_keys = {
            number: OrgKeys(partition.state.rows, kms, self.signer.public_key())
            for number, partition in partitions.items()
        }

    def _of(self, org: str) -> KeyPartition:
        return self.partitions[partition_of(org.encode(), len(self.partitions))]

    def _book(self, partition: KeyPartition) -> OrgBook:
        return OrgBook(partition.state, self._org_keys[partition.number], self.signer)

    def create(self, org: str, project: str, known: Known | None = None) -> bool:
        """Create what is missing of an org, a project and a credential; tell whether keys were.

        Raises:
            Fenced: another keeper has the org's partition.
            KeyUnavailable: rows of the org are there but do not open.
            Unavailable: Kafka or the KMS does not answer.
        """
        partition = self._of(org).ready()
        wanted = Project(org, project, self.retention_class)
        entries = list(missing(self.directory, wanted, known))
        rows = self._missing_rows(partition, wanted)
        if rows or entries:
            events = records(entries, self.clock_us())
            partition.write(rows, events)
            for event in events:
                self.directory.take(event.value)
        return bool(rows)

    def create_key(self, org: str, key: ApiKey) -> None:
        """Write an API key to the directory. A repeat changes nothing.

        Raises:
            NotFound: there is no such org, or no such project in it.
            UsageError: the id is taken.
            Fenced: another keeper has the org's partition.
            Unavailable: Kafka does not answer.
        """
        self._enter(org, setting(self.directory, org, key))

    def revoke_key(self, org: str, id: str) -> None:
        """Write to the directory that an API key holds no longer.

        Raises:
            NotFound: the org has no such key.
            Fenced: another keeper has the org's partition.
            Unavailable: Kafka does not answer.
        """
        self._enter(org, revoking(self.directory, org, id))

    def _enter(self, org: str, entries: list[dict[str, Any]]) -> None:
        if not entries:
            return
        events = records(entries, self.clock_us())
        self._of(org).ready().write([], events)
        for event in events:
            self.directory.take(event.value)

    def _missing_rows(self, partition: KeyPartition, wanted: Project) -> list[Row]:
        rows: list[Row] = []
        book = self._book(partition)
        if id_row_key(wanted.org) in partition.state.rows:
            if any(have.project == wanted.project for have in partition.state.projects(wanted.org)):
                return []
            sealer = book.sealer(wanted.org)
        else:
            sealer, rows = self._new_org(wanted.org)
        return rows + plan(book, wanted, day_of(self.clock_us()), sealer).rows

    def _new_org(self, org: str) -> tuple[Sealer, list[Row]]:
        org_key = os.urandom(32)
        wrapped = WrappedKey(1, self.kms.name, self.kms.wrap(org, 1, org_key))
        label = HeadLabel(1, 1, ZERO_DIGEST)
        rows = [
            wrapping_row(org, wrapped, self.signer),
            seal_id_key(org, label, os.urandom(32), org_key, self.signer),
        ]
        return Sealer(1, org_key, self.signer), rows

    def mint(self) -> Minted:
        """Mint what is missing of the next 14 days in every project.

        A project that fails is passed over with an alarm; the others are minted.

        Raises:
            Fenced: another keeper has a partition.
            Unavailable: Kafka does not answer.
        """
        days, short = 0, []
        for partition in self.partitions.values():
            projects = list(partition.ready().state.projects())
            for at in range(0, len(projects), _PROJECTS_A_TRANSACTION):
                days += self._mint(partition, projects[at : at + _PROJECTS_A_TRANSACTION])
            short += [project for project in projects if self._is_short(partition, project)]
        return Minted(days, short)

    def _mint(self, partition: KeyPartition, projects: Iterable[Project]) -> int:
        rows: list[Row] = []
        days = 0
        for project in projects:
            try:
                book = self._book(partition)
                planned = plan(book, project, day_of(self.clock_us()), book.sealer(project.org))
            except (KeyUnavailable, Unavailable) as error:
                logger.error("%s/%s is not minted: %s", project.org, project.project, error)
                continue
            rows += planned.rows
            days += planned.days
        if rows:
            partition.write(rows)
        return days

    def _is_short(self, partition: KeyPartition, project: Project) -> bool:
        try:
            ahead = minted_ahead(self._book(partition), project, day_of(self.clock_us()))
        except (KeyUnavailable, Unavailable) as error:
            logger.error("%s/%s cannot be read: %s", project.org, project.project, error)
            return True
        if ahead < SHORT_DAYS:
            logger.error(
                "%s/%s has %d days minted ahead, not %d",
                project.org,
                project.project,
                ahead,
                AHEAD_DAYS,
            )
        return ahead < SHORT_DAYS

    def grant(self, orgs: Iterable[str]) -> Grant:
        """Return a grant of what is alive of yesterday, today and tomorrow.

        Raises:
            KeyUnavailable: an org is not there, or its id key does not open.
            Unavailable: the KMS does not answer.
        """
        at_us = self.clock_us()
        granted = []
        for org in orgs:
            partition = self._of(org)
            with partition.lock:
                granted.append(org_grant(self._book(partition), org, day_of(at_us)))
        return Grant(granted, at_us, at_us + GRANT_SECONDS * 1_000_000, clock_us=self.clock_us)

    def puncture(self, org: str, project: str, targets: Sequence[Target]) -> list[Result]:
        """Erase everything under the targets, one transaction a tree; returns when it can be read.

        What was erased before is left alone, so a call whose answer was lost is simply made again.
        Grants made from now on have the new heads; those handed out before last until they expire.

        Raises:
            UsageError: there are no targets, or too many for one call.
            NotFound: a target's tree is not one of the project's, or there is no such project.
            KeyUnavailable: a day is not minted, or rows do not open; nothing was written.
            Fenced: another keeper has the org's partition.
            Unavailable: Kafka did not answer; some trees may be done, a repeat does the rest.
        """
        partition = self._of(org).ready()
        changes = plan_punctures(self._book(partition), org, project, targets)
        for change in changes:
            if change.rows:
                partition.write(change.rows)
        partition.settle()
        return [result for change in changes for result in change.results]

    def heartbeat(self) -> None:
        """Write a record to each partition, so that segments roll and the cleaner can work.

        Raises:
            Fenced: another keeper has a partition.
            Unavailable: Kafka does not answer.
        """
        value = b"\1" + self.clock_us().to_bytes(8, "big")
        for partition in self.partitions.values():
            partition.ready().write([(HEARTBEAT_KEY, value)])
