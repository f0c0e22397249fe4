"""Which calls of a trace repeat the usage of calls below them.

A call within a call is one call seen twice: by the instrumentation of a framework and by that of
the client library beneath it. The one without calls below it, the leaf, is billed. Calls for
embeddings do not stand for calls that generate, nor the reverse.
"""

from collections.abc import Iterator, Mapping

# A chain of parents that is longer is a loop, or nobody's agent.
MAX_DEPTH = 256


def covered(parents: Mapping[str, str], booked: Mapping[str, str]) -> set[str]:
    """Return the spans that were booked and have a booked call of their family below them.

    Args:
        parents: of each span of a trace that is known, the parent's id, empty for a root.
        booked: the family of those that were booked, `call` or `embedding`.
    """
    return {
        above
        for span, family in booked.items()
        for above in _ancestors(span, parents)
        if booked.get(above) == family
    }


def _ancestors(span: str, parents: Mapping[str, str]) -> Iterator[str]:
    above = parents.get(span, "")
    for _ in range(MAX_DEPTH):
        if not above or above == span:
            return
        yield above
        above = parents.get(above, "")
