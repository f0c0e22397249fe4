"""A provider on this machine that speaks what real ones speak, from recorded bytes.

```python
async with Provider.serving() as provider:
    client = openai.AsyncOpenAI(base_url=f"{provider.url('pace_ms=5,cut=900')}/v1", api_key="k")
    ...
    assert provider.asked[-1].body == b"..."
```

How an answer goes is a `Scenario`: in the path, as above, or in the header `x-provider`.
`python -m tests.provider --port N` serves the same from a process of its own.
"""

from tests.provider.asked import Asked
from tests.provider.recordings import CHECKOUT_SAMPLES, SHARED, Recordings
from tests.provider.scenario import HEADER, Scenario
from tests.provider.server import Provider

__all__ = [
    "CHECKOUT_SAMPLES",
    "HEADER",
    "SHARED",
    "Asked",
    "Provider",
    "Recordings",
    "Scenario",
]
