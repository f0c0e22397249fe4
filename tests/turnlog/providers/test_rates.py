"""Quick rates against the price book's own calculation."""

import pytest
from genai_prices import data_snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from turnlog.providers import CLASSES
from turnlog.providers.rates import cost_of_classes, extracted_of
from turnlog.providers.usage import classes, price

AT_US = 1_796_000_000_000_000
PROVIDERS = {provider.id: provider for provider in data_snapshot.get_snapshot().providers}

counts = st.dictionaries(st.sampled_from(CLASSES), st.integers(0, 400_000))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_rates_say_what_the_price_book_calculates(provider: str) -> None:
    models = [model.id for model in PROVIDERS[provider].models]

    @settings(max_examples=15, deadline=None, database=None)
    @given(st.sampled_from(models), counts)
    def same(model: str, used: dict[str, int]) -> None:
        full = price(extracted_of(used), provider, (model,), AT_US, {})
        assert cost_of_classes(provider, (model,), used, AT_US) == full

    if models:
        same()


@given(counts)
def test_classes_come_back_from_the_inclusive_terms(used: dict[str, int]) -> None:
    reported = {k: v for k, v in vars(extracted_of(used)).items() if not k.startswith("_")}
    assert classes(reported) == dict.fromkeys(CLASSES, 0) | used


def test_the_first_model_that_the_book_knows_decides() -> None:
    used = {"output_text": 1000}
    known = cost_of_classes("openai", ("gpt-4o-mini",), used, AT_US)
    assert cost_of_classes("openai", ("", "gpt-4o-mini"), used, AT_US) == known
    assert cost_of_classes("openai", ("no such",), used, AT_US) is None
    assert cost_of_classes("", ("gpt-4o-mini",), used, AT_US) is None
