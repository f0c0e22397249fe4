"""`turnlog packs`: the objects of the archive."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import click

from serve.cli.output import json_line, table
from sinks.packs.layout import Range
from streams.manifests import Manifest, live_manifests
from turnlog.config import load


@click.command()
@click.option("--org", help="Only objects that hold records of this org, and only its part.")
@click.option("--json", "as_json", is_flag=True, help="One object a line.")
def packs(org: str | None, as_json: bool) -> None:
    """List the objects of the archive, oldest first.

    As their manifests describe them.

    Example: turnlog packs --org local --json
    """
    found = [m for m in live_manifests(load()) if org in (None, m.org)]
    rows = list(_objects(found))
    if as_json:
        for row in rows:
            json_line(row)
    else:
        table(map(_short, rows), ["object", "kind", "records", "bytes", "orgs", "partitions"])


def _objects(manifests: Iterable[Manifest]) -> Iterator[dict[str, Any]]:
    """Join the manifests of each object. Names begin with the day, so they sort by time."""
    by_object = sorted(manifests, key=lambda m: m.object)
    for name, group in groupby(by_object, key=lambda m: m.object):
        parts = list(group)
        yield {
            "object": name,
            "kind": parts[0].kind,
            "records": sum(part.records for part in parts),
            "bytes": parts[0].size_bytes,
            "orgs": sorted(part.org for part in parts),
            "ranges": list(_joined(found for part in parts for found in part.ranges)),
        }


def _joined(ranges: Iterable[Range]) -> Iterator[dict[str, Any]]:
    """Join what several orgs have in one partition."""
    for (topic, partition), group in groupby(sorted(ranges), key=lambda r: r[:2]):
        part = list(group)
        first, last = min(r.first for r in part), max(r.last for r in part)
        yield Range(topic, partition, first, last, sum(r.records for r in part))._asdict()


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"orgs": len(row["orgs"]), "partitions": len(row["ranges"])}
