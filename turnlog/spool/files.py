"""What in a process's folder is a segment of the spool, and what somebody else put there."""

import re
import stat
from collections.abc import Iterator
from pathlib import Path

SUFFIX = ".seg"
OWN = frozenset({"lock", "reserve", "shed.json", "shed.new", "probe"})
"""What a folder holds beside segments."""
_NUMBERED = re.compile(r"(.+)-(\d{8})\.seg", re.ASCII)


def segment_name(lane: str, number: int) -> str:
    """Return the name of a lane's segment."""
    return f"{lane}-{number:08d}{SUFFIX}"


def number_of(path: Path) -> int:
    """Return the number of a segment."""
    return int(path.stem.rpartition("-")[2])


def files_in(folder: Path) -> list[Path]:
    """Return the plain files of a folder, in order: a pipe would hang who opens it."""
    return sorted(path for path in folder.iterdir() if is_plain(path))


def segments_in(folder: Path, lane: str = "") -> list[Path]:
    """Return the segments of a lane, else of all, in order."""
    found = files_in(folder)
    return [path for path in found if (name := _lane(path)) and lane in ("", name)]


def strangers_in(folder: Path, lanes: tuple[str, ...]) -> Iterator[str]:
    """Yield the names of what the spool did not write."""
    for path in sorted(folder.iterdir()):
        known = path.name in OWN or _lane(path) in lanes
        if not known or not is_plain(path):
            yield path.name


def _lane(path: Path) -> str:
    match = _NUMBERED.fullmatch(path.name)
    return match[1] if match else ""


def is_plain(path: Path) -> bool:
    """Say whether there is a file, and no folder, link or pipe."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:  # drained meanwhile
        return False
