"""A gateway for tests: `python -m tests.feed LOG` writes runs until LOG.stop exists.

Each line of LOG is flushed at once: `ask WHAT` before an accepted call, `ack WHAT` after it was
acknowledged. What stands in an `ack` must be in every view afterwards, whatever was killed.
"""

import asyncio
import sys
from pathlib import Path
from typing import TextIO

from turnlog import Producer
from turnlog.producer.fields import RunFields

STREAMS = 24
RESPONSE = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"answered"}}]}'


async def main(path: Path) -> None:
    stop = path.with_suffix(".stop")
    with path.open("w", buffering=1) as log:
        async with Producer.open() as producer:
            await asyncio.gather(*(stream(producer, n, stop, log) for n in range(STREAMS)))


async def stream(producer: Producer, number: int, stop: Path, log: TextIO) -> None:
    count = 0
    while not stop.exists():
        conversation = f"feed_{path_safe(log.name)}_{number}_{count // 5}" if number % 3 else ""
        await one_run(producer, f"{path_safe(log.name)}_{number}_{count}", conversation, log)
        count += 1


async def one_run(producer: Producer, name: str, conversation: str, log: TextIO) -> None:
    print("ask created", name, file=log)
    fields: RunFields = {
        "org": "local", "run": name, "provider": "openai", "model": "gpt-4o-mini",
        "request": {"messages": [{"role": "user", "content": name}]},
    }  # fmt: skip
    if conversation:
        fields |= {"conversation": conversation, "input": f"question {name}"}
    async with producer.run(**fields) as run:
        print("ack created", name, file=log)
        for word in ("answer", "ed"):
            run.chunk(word)
        await asyncio.sleep(0.05)
        print("ask ended", name, file=log)
        await run.complete(
            response=RESPONSE, usage={"input_uncached": 11, "output_text": 7}, finish_reason="stop"
        )
        print("ack ended", name, file=log)


def path_safe(name: str) -> str:
    return "".join(c for c in Path(name).stem if c.isalnum())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
