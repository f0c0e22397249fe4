"""What the keeper knows from `turnlog.directory`: whose token may ask for which org's keys."""

import hmac
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from processors.common import shaped
from streams.keeper.state import Project
from turnlog.config import Config
from turnlog.errors import DecodeError
from turnlog.events import Record, decode, record
from turnlog.ids import event_id
from turnlog.kafka import read_all
from turnlog.keeper_client import token_digest, token_id

logger = logging.getLogger(__name__)

TOPIC = "turnlog.directory"
ENTRY = "directory.entry"
_NOBODY = "0" * 64


def entry_in(value: bytes | None) -> dict[str, Any] | None:
    """Return the body of a directory entry, None where a record is none."""
    try:
        event = decode(value or b"")
    except DecodeError:
        return None
    return shaped(event) if event.type == ENTRY else None


class Known(NamedTuple):
    """A credential as the directory has it.

    Attributes:
        id: the token's public part.
        sha256: of the token, hex.
    """

    id: str
    sha256: str


class Directory:
    """Entries by (org, kind, id). Safe to use from several threads."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str, str], Mapping[str, str]] = {}
        self._orgs_of: dict[str, str] = {}
        self._lock = threading.Lock()

    @classmethod
    def load(cls, config: Config) -> "Directory":
        """Read the topic to its end.

        Raises:
            Unavailable: Kafka does not answer.
        """
        directory = cls()
        odd = [
            f"{message.partition()}/{message.offset()}"
            for message in read_all(config, TOPIC)
            if not directory.take(message.value()) and message.value() is not None
        ]
        if odd:
            logger.warning(
                "%s: %d records are no entries, the first is %s", TOPIC, len(odd), odd[0]
            )
        return directory

    def take(self, value: bytes | None) -> bool:
        """Take in one record; say False of what is no entry: it is nobody's right, passed over."""
        body = entry_in(value)
        if body is None:
            return False
        with self._lock:
            self._take(body)
        return True

    def _take(self, body: Mapping[str, Any]) -> None:
        place = body["org"], body["kind"], body["id"]
        if body["revoked"]:
            self._entries.pop(place, None)
            return
        self._entries[place] = body["value"]
        if body["kind"] == "credential":
            self._orgs_of[body["id"]] = body["org"]

    def has(self, org: str, kind: str, id: str) -> bool:
        """Tell whether an entry stands."""
        with self._lock:
            return (org, kind, id) in self._entries

    def value_of(self, org: str, kind: str, id: str) -> Mapping[str, str] | None:
        """Return what an entry that stands has set."""
        with self._lock:
            return self._entries.get((org, kind, id))

    def org_of(self, token: str) -> str | None:
        """Return the org of a token, None for one that is not known.

        Digests are compared in constant time, and one is compared whether the id is known or not.
        """
        id = token_id(token)
        with self._lock:
            org = self._orgs_of.get(id, "")
            known = self._entries.get((org, "credential", id), {}).get("sha256", _NOBODY)
        same = hmac.compare_digest(token_digest(token), known)
        return org if same and org else None


def missing(
    directory: Directory, project: Project, known: Known | None
) -> Iterator[dict[str, Any]]:
    """Give the entries that the directory lacks of an org, a project and a credential."""
    org = project.org
    if not directory.has(org, "org", org):
        yield entry(org, "org", org, {})
    if not directory.has(org, "project", project.project):
        value = {"retention_class": project.retention_class}
        yield entry(org, "project", project.project, value)
    if known is not None and not directory.has(org, "credential", known.id):
        yield entry(org, "credential", known.id, {"sha256": known.sha256, "role": "producer"})


def revocation(org: str, kind: str, id: str) -> dict[str, Any]:
    """Return the body of the entry that ends another."""
    return {**entry(org, kind, id, {"revoked": "1"}), "value": {}, "revoked": True}


def entry(org: str, kind: str, id: str, value: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of a `directory.entry`; its time is filled in when it is written."""
    natural_id = "/".join((kind, id, *(f"{name}={value[name]}" for name in sorted(value))))
    return {
        "org": org,
        "event_id": event_id(org, "", ENTRY, natural_id),
        "kind": kind,
        "id": id,
        "value": value,
    }


def records(bodies: list[dict[str, Any]], at_us: int) -> list[Record]:
    """Return the records of entries that are written now."""
    return [record(ENTRY, {**body, "occurred_at_us": at_us}) for body in bodies]
