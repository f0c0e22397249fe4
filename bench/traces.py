"""Lengths of real requests and answers, and text of such lengths.

The lengths come from production traces beside the project (`../shared/data/traces`: Azure's code
trace of 2023 and Mooncake's conversations). Where those are absent, `SYNTHETIC` stands in, a small
distribution of our own of the same kind: short answers to long prompts, with a heavy tail.
"""

import csv
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TRACES = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"
AZURE = "azure_llm_2023_code.csv"
MOONCAKE = "mooncake_conversation_first4000.jsonl"

# A token of English or code is about four characters.
CHARS_PER_TOKEN = 4

_SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnprstvw" for vowel in "aeiou"]
_RANDOM_SEED = 20260731


class Lengths(NamedTuple):
    """Tokens of one exchange."""

    prompt: int
    answer: int


SYNTHETIC = tuple(
    Lengths(prompt, answer)
    for prompt, answer in (
        (310, 8), (640, 11), (980, 14), (1450, 12), (1900, 22), (2600, 31), (3400, 9), (4700, 45),
        (1200, 180), (2100, 260), (3900, 340), (6200, 390), (7700, 520), (9400, 610), (15800, 280),
        (31000, 420),
    )
)  # fmt: skip


def lengths() -> tuple[Iterator[Lengths], str]:
    """Return an endless iterator of lengths and the name of where they come from."""
    if not ((TRACES / AZURE).is_file() and (TRACES / MOONCAKE).is_file()):
        return itertools.cycle(SYNTHETIC), "synthetic lengths, the traces are absent"
    pairs = zip(itertools.cycle(_azure()), itertools.cycle(_mooncake()), strict=False)
    return itertools.chain.from_iterable(pairs), f"{AZURE} and {MOONCAKE} in turn"


def _azure() -> list[Lengths]:
    with (TRACES / AZURE).open(newline="") as file:
        rows = csv.DictReader(file)
        return [Lengths(int(r["ContextTokens"]), int(r["GeneratedTokens"])) for r in rows]


def _mooncake() -> list[Lengths]:
    lines = map(json.loads, (TRACES / MOONCAKE).read_text().splitlines())
    return [Lengths(line["input_length"], line["output_length"]) for line in lines]


class Text:
    """Slices of one long text of made-up words, which compresses about as prose does."""

    def __init__(self, chars: int = 4 << 20) -> None:
        pick = random.Random(_RANDOM_SEED)
        words = ["".join(pick.choices(_SYLLABLES, k=pick.randint(1, 4))) for _ in range(6000)]
        weights = [1 / rank for rank in range(1, len(words) + 1)]
        made = " ".join(pick.choices(words, weights, k=chars // 4))
        self._text = made[:chars]
        self._pick = pick

    def of(self, chars: int) -> str:
        """Return that many characters from a random place."""
        start = self._pick.randrange(len(self._text) - chars)
        return self._text[start : start + chars]
