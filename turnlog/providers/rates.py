"""What token classes cost, quickly.

`genai_prices.calc_price` takes a quarter of a millisecond, as much as sealing and sending the eight
events of a run. Where a model's prices have no tiers they are linear in the classes, so one
calculation for each class, once a price, gives rates that say the same in 3 µs. A test compares
the two over the whole price book.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal

from genai_prices import data_snapshot
from genai_prices.types import ModelPrice, TieredPrices
from genai_prices.types import Usage as Extracted

from turnlog.providers.exchange import CLASSES
from turnlog.providers.usage import NANO_USD, cost_in_bounds, names_to_price, price

_PROBE_TOKENS = 1_000_000
_INPUT = CLASSES[:4] + ("audio_in", "image_in", "tool_use")
_OUTPUT = ("output_text", "output_reasoning", "audio_out", "image_out")
_NAMES = {
    "cache_read": "cache_read_tokens",
    "cache_write_5m": "cache_write_5m_tokens",
    "cache_write_1h": "cache_write_1h_tokens",
    "output_reasoning": "output_reasoning_tokens",
    "audio_in": "input_audio_tokens",
    "audio_out": "output_audio_tokens",
    "image_in": "input_image_tokens",
    "image_out": "output_image_tokens",
    "tool_use": "input_tool_tokens",
}

# Audio and images can lie inside what was cached, which only the full calculation judges.
_LINEAR = CLASSES[:6]
_LINEAR_SET = frozenset(_LINEAR)

Rates = Mapping[str, Decimal]  # nano-USD a token, by class

# By identity: the price book makes each ModelPrice once, and holding it keeps its id taken.
_known: dict[int, tuple[ModelPrice, Rates | None]] = {}


def warm() -> None:
    """Load the price book; it takes over half a second, which no event loop should wait."""
    data_snapshot.get_snapshot()


def cost_of_classes(
    provider: str, models: Sequence[str], counts: Mapping[str, int], at_us: int
) -> int | None:
    """Return the cost of disjoint token classes in nano-USD, rounded half to even.

    Args:
        provider: id in the price book; empty: bills nobody.
        models: names under which the model may stand in the price book, best first.
        counts: tokens by class; a class that is left out is 0.
        at_us: when they were used, UTC microseconds.

    Returns:
        None where the book has no price, or no call costs so much.
    """
    used = {name: count for name, count in counts.items() if count}
    rates = _rates(provider, models, at_us) if used.keys() <= _LINEAR_SET else None
    if rates is None:
        return price(extracted_of(used), provider, models, at_us, {})
    total = sum((rates[name] * count for name, count in used.items()), Decimal())
    return cost_in_bounds(total)


def extracted_of(counts: Mapping[str, int]) -> Extracted:
    """Return classes in the inclusive terms of genai-prices: the reverse of `usage.classes`."""
    given = {_NAMES[name]: count for name, count in counts.items() if count and name in _NAMES}
    written = sum(counts.get(name, 0) for name in ("cache_write_5m", "cache_write_1h"))
    if written:
        given["cache_write_tokens"] = written
    given["input_tokens"] = sum(counts.get(name, 0) for name in _INPUT)
    given["output_tokens"] = sum(counts.get(name, 0) for name in _OUTPUT)
    return Extracted(**given)


def _rates(provider: str, models: Sequence[str], at_us: int) -> Rates | None:
    prices = _prices(provider, models, at_us)
    if prices is None:
        return None
    known = _known.get(id(prices))
    if known is None:
        known = _known[id(prices)] = (prices, _probe(prices))
    return known[1]


def _prices(provider: str, models: Sequence[str], at_us: int) -> ModelPrice | None:
    """Return the prices of the first model that the book knows."""
    snapshot = data_snapshot.get_snapshot()
    for model in names_to_price(models if provider else ()):
        try:
            _, info = snapshot.find_provider_model(model, None, provider, None)
        except LookupError:
            continue
        return info.get_prices(datetime.fromtimestamp(at_us // 1_000_000, UTC))
    return None


def _probe(prices: ModelPrice) -> Rates | None:
    """Return the rates of prices that are linear, None for others."""
    if any(isinstance(value, TieredPrices) for value in vars(prices).values()):
        return None
    try:
        rates = {name: _cost(prices, {name: _PROBE_TOKENS}) / _PROBE_TOKENS for name in _LINEAR}
        return rates if not _cost(prices, {}) else None
    except ValueError:
        return None


def _cost(prices: ModelPrice, counts: Mapping[str, int]) -> Decimal:
    return Decimal(prices.calc_price(extracted_of(counts))["total_price"]) * NANO_USD
