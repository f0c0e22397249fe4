"""Runs written event by event, to be read back."""

import asyncio
import re
from typing import Any, NamedTuple

from confluent_kafka import Producer as KafkaProducer

from turnlog import Producer
from turnlog.config import Config
from turnlog.ids import event_id
from turnlog.kafka import partition_of, partitions_of, producer_settings, read_all
from turnlog.keeper_client import create, credential_of, puncture
from turnlog.keys import Locator, Subject
from turnlog.keys.targets import Target

KEYS = "turnlog.keys"
BEGAN_US = 1_760_000_000_000_000


class Written(NamedTuple):
    """One event of a run: type, further fields, content and whose key seals it."""

    type: str
    fields: dict[str, Any]
    content: dict[str, Any] | None = None
    kind: str = "o"


def created(request: bytes = b"asked", **fields: Any) -> Written:
    began = {"occurred_at_us": BEGAN_US, "writer_epoch": 1, "seq": 0}
    return Written("run.created", began | fields, {"request": request}, "q")


def ended(status: str, response: bytes = b"answered", **fields: Any) -> Written:
    end = {"occurred_at_us": BEGAN_US + 1_500_000, "status": status, "writer_epoch": 1, "seq": 1}
    output = [{"index": 0, "text": response.decode(errors="replace")}]
    return Written(f"run.{status}", end | fields, {"response": response, "output": output})


def used(**fields: Any) -> Written:
    usage = {"occurred_at_us": BEGAN_US, "sign": 1, "quality": "measured", "writer_epoch": 1}
    return Written("usage.recorded", usage | fields)


def write_runs(config: Config, org: str, runs: dict[str, list[Written]]) -> dict[str, Locator]:
    """Write the events of each run in their order; return the key locators by run."""
    create(config, org)
    return asyncio.run(_write(config, org, runs))


async def _write(config: Config, org: str, runs: dict[str, list[Written]]) -> dict[str, Locator]:
    locators = {}
    async with Producer.open(config, credential_of(config, org)) as producer:
        for run, events in runs.items():
            locators[run] = locator = producer.grant.begin(
                org, "default", user="", conversation="", subject_id=run, kind="o"
            )
            for event in events:
                body = {"org": org, "project": "default", "run": run} | event.fields
                natural = f"{body['writer_epoch']}/{body.get('seq', 0)}/{body.pop('natural', '')}"
                body["event_id"] = event_id(org, run, event.type, natural)
                subject = Subject(org, "", "", run, event.kind)
                await producer.append(event.type, body, event.content, subject, locator)
    return locators


def lose_pages(config: Config, org: str) -> None:
    """Remove the pages of an org's trees, as a damaged copy of the topic would."""
    number = partition_of(org.encode(), len(partitions_of(config, KEYS)))
    producer = KafkaProducer(producer_settings(config))
    for message in read_all(config, KEYS, [number]):
        key = (message.key() or b"").decode()
        if re.fullmatch(f"{org}/[0-9a-f]{{32}}/[0-9a-f]{{32}}", key):
            producer.produce(KEYS, None, key, partition=number)
    assert producer.flush(30) == 0


def erase_run(config: Config, org: str, run: str, locator: Locator) -> None:
    """Have the keeper puncture both keys of a run."""
    target = Target("run", locator.tree, locator.day, "", locator.gen, "", run)
    assert puncture(config, org, "default", [target])
