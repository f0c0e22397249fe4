"""What walking the key tree costs beside the bare HMAC calls that it cannot do without."""

import itertools
import os
from collections.abc import Callable, Iterator
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.measure import Result, Sample, Stopwatch, blocks, result
from turnlog.config import Config
from turnlog.keys.cache import Deriver, NodeCache
from turnlog.keys.expand import INNER, INNER_PAD, OUTER, OUTER_PAD
from turnlog.keys.index import Locator, Subject
from turnlog.keys.mint import Sealer, plant
from turnlog.keys.rows import open_head
from turnlog.keys.tree import StoredTree

PATH = "keys-run"
ORG, DAY = "bench", 1
TREE = bytes(16)

# 80 steps from the conversation to the run; the letters `o` and `q` begin with the same three bits
# and part for five each. Then the run's index part once, and for each key its DEK, K_enc and
# dek_commit.
HMACS_A_RUN = 80 + 3 + 2 * 5 + 1 + 2 * 3

BLOCK_RUNS = 500
RUNS_A_CONVERSATION = 50
_MESSAGE = INNER_PAD + b"turnlog/tree/v1\0" + b"0" + b"\1"


def paths() -> dict[str, Callable[[Config, int], Result]]:
    """Return the path of this file: it needs no stack."""
    return {PATH: lambda config, runs: measure(runs)}


def measure(runs: int) -> Result:
    """Measure both keys of a run, from the node of its conversation on.

    Beside them as many HMAC-SHA-256 as they need at the least, `HMACS_A_RUN`, one after the other
    as in a walk, in the fastest way that plain Python has on the reference machine: two calls of
    `hashlib.sha256` over the padded key (1.2 µs; `hmac.digest` takes 1.9 to 2.2).

    Args:
        runs: how many at least, by each side.
    """
    ours, bare = [], []
    deriver = _deriver()
    given = _subjects()
    for size in itertools.chain((BLOCK_RUNS,), blocks(runs, BLOCK_RUNS)):
        ours.append(_derive(deriver, list(itertools.islice(given, size))))
        bare.append(_bare(size))
    # The first block of each warms up and is not counted.
    return result(PATH, ours[1:], bare[1:])


def _deriver() -> Deriver:
    sealer = Sealer(1, os.urandom(32), Ed25519PrivateKey.generate())
    rows = {key: value for key, value in plant(ORG, TREE, DAY, DAY, sealer) if value is not None}
    [head_value] = [value for key, value in rows.items() if key.endswith(b"/head")]
    head = open_head(ORG, TREE, head_value, sealer.org_key, sealer.signer.public_key())
    stored = StoredTree(ORG, TREE, head, rows)
    return Deriver(TREE, head.gen, head.index_key, stored, NodeCache())


def _subjects() -> Iterator[tuple[Subject, Subject]]:
    """Give the two keys of run after run, fifty runs a conversation."""
    for number in itertools.count():
        conversation = f"conv_{number // RUNS_A_CONVERSATION}"
        run = f"run_{number}"
        yield (
            Subject(ORG, "user_7", conversation, run, "o"),
            Subject(ORG, "user_7", conversation, run, "q"),
        )


def _derive(deriver: Deriver, runs: list[tuple[Subject, Subject]]) -> Sample:
    locator = Locator(TREE, DAY, 0)
    for conversation in {output.conversation: output for output, _ in runs}.values():
        deriver.data_key(locator, conversation._replace(id="before"))
    derive = deriver.data_key
    watch = Stopwatch()
    for output, request in runs:
        derive(locator, output)
        derive(locator, request)
    return watch.sample(len(runs))


def _bare(runs: int) -> Sample:
    key = os.urandom(32)
    watch = Stopwatch()
    for _ in range(runs * HMACS_A_RUN):
        inner = sha256(key.translate(INNER) + _MESSAGE).digest()
        key = sha256(key.translate(OUTER) + OUTER_PAD + inner).digest()
    return watch.sample(runs)
