"""Sorted intervals of whole numbers, both ends included: what they leave out, and joining them."""

from collections.abc import Iterable, Iterator


def holes(owned: Iterable[tuple[int, int]], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield what of `first..last` no interval of the sorted `owned` covers."""
    for start, end in owned:
        if start > last:
            break
        if first < start:
            yield first, start - 1
        first = max(first, end + 1)
    if first <= last:
        yield first, last


def joined(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort intervals and join those that overlap or touch."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found
