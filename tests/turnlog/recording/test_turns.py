"""Many runs that end at once take turns: nobody else waits for all of them."""

import asyncio

from tests.turnlog.producer.parts import producer_in_memory
from turnlog.recording.turns import BACKLOG, Turns, turns_of


async def note(turns: Turns, name: int, seen: list[int]) -> None:
    await turns.next()
    seen.append(name)


async def test_all_come_in_their_order_and_few_in_a_step() -> None:
    turns, seen = Turns(), list[int]()
    wanted = 10 * BACKLOG
    counts = []
    async with asyncio.TaskGroup() as tasks:
        for number in range(wanted):
            tasks.create_task(note(turns, number, seen))
        while (before := len(seen)) < wanted:
            await asyncio.sleep(0)
            counts.append(len(seen) - before)
    assert seen == list(range(wanted))
    # The more of them wait, the faster they go.
    assert max(counts) == 11
    assert counts[-1] == 1


async def test_whoever_left_takes_no_turn() -> None:
    turns, seen = Turns(), list[int]()
    leaving = [asyncio.create_task(note(turns, 0, seen)) for _ in range(50)]
    staying = asyncio.create_task(note(turns, 1, seen))
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    await staying
    assert seen == [1]
    await asyncio.gather(*leaving, return_exceptions=True)


async def test_turns_are_a_producers() -> None:
    async with producer_in_memory() as one, producer_in_memory() as other:
        assert turns_of(one.producer) is turns_of(one.producer)
        assert turns_of(one.producer) is not turns_of(other.producer)
