"""A gateway for tests that is going to be lost: `python -m tests.lost ORG RUN [MORE RUNS]`.

It begins the runs, shows output in the first one, says `shown` when that has reached Kafka, and
waits. On a line from its standard input it completes the runs and says `ended`.
"""

import asyncio
import sys
from contextlib import AsyncExitStack

from turnlog import Producer
from turnlog.config import load
from turnlog.keeper_client import credential_of
from turnlog.producer import Run

REQUEST = {"messages": [{"role": "user", "content": "twelve words"}]}
SHOWN = ("Hello ", "wörld ", "\N{GRINNING FACE}")
USED = {"input_uncached": 11, "output_text": 7}


async def main(org: str, names: list[str]) -> None:
    config = load()
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(
            Producer.open(config, credential_of(config, org))
        )
        runs = [
            producer.run(org=org, run=name, provider="openai", model="gpt-4o", request=REQUEST)
            for name in names
        ]
        for run in runs:
            await run.__aenter__()
        await show(runs[0])
        print("shown", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for run in runs:
            await run.complete(response=b"{}", usage=USED, finish_reason="stop")
    print("ended", flush=True)


async def show(run: Run) -> None:
    for piece in SHOWN:
        run.chunk(piece)
    run.chunk("hm", kind="reasoning")
    run.seal()
    await asyncio.gather(*run._others)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
