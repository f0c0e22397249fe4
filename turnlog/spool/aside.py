"""Damaged segments, kept byte for byte in `{spool}/damaged/{owner}/` until somebody removes them.

The file itself is kept, under a second name, so that it costs no room on a disk that may be full.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from turnlog.errors import UsageError
from turnlog.spool.files import files_in
from turnlog.spool.records import Damage, Spooled, salvaged, scan

DAMAGED = "damaged"


class Aside(NamedTuple):
    """A damaged record of a segment that was set aside.

    Attributes:
        owner: whose segment it was.
        path: where the segment is.
        record: what it says of itself, any bit of which may be wrong; None where it says nothing.
    """

    owner: str
    path: Path
    record: Spooled | None


def set_aside(segment: Path) -> Path:
    """Keep a segment as it is, whatever becomes of it; return where. On the disk when it returns.

    Raises:
        OSError: it cannot be kept.
    """
    folder = segment.parent.parent / DAMAGED / segment.parent.name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, kept = 0, folder / segment.name
    while kept.exists():
        if kept.samefile(segment):
            return kept
        number += 1
        kept = folder / f"{segment.stem}.{number}{segment.suffix}"
    _link(segment, kept)
    for each in (kept, folder, folder.parent, folder.parent.parent):
        _sync(each)
    return kept


def _link(segment: Path, kept: Path) -> None:
    try:
        os.link(segment, kept)
    except OSError:  # not every file system has second names
        shutil.copyfile(segment, kept)


def _sync(path: Path) -> None:
    held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(held)
    finally:
        os.close(held)


def look_aside(spool: Path) -> list[Aside]:
    """Return the damaged records of a spool.

    Raises:
        UsageError: what was set aside cannot be read.
    """
    try:
        return [each for folder in _folders(spool / DAMAGED) for each in _damaged_in(folder)]
    except OSError as error:
        raise UsageError(f"spool {spool / DAMAGED}: {error.strerror}") from error


def _folders(damaged: Path) -> list[Path]:
    return sorted(path for path in damaged.iterdir() if path.is_dir()) if damaged.is_dir() else []


def _damaged_in(folder: Path) -> Iterator[Aside]:
    for path in files_in(folder):
        data = path.read_bytes()
        for part in scan(data):
            if isinstance(part, Damage) and not part.torn:
                yield from (Aside(folder.name, path, each) for each in salvaged(data, part))
