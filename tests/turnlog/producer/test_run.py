"""The life of a run: what is written, in which order, under which keys."""

import asyncio
import random
from typing import Any

import pytest

from tests.turnlog.producer.parts import ORG, Opened, content_of, later_ns, producer_in_memory
from turnlog.errors import TooLarge, Unavailable, UsageError
from turnlog.events import TYPES
from turnlog.ids import event_id
from turnlog.keys import MAX_FRAME_BYTES
from turnlog.producer import Run

WHOLE = {"org": ORG, "user": "ann", "conversation": "c1", "provider": "openai", "model": "gpt-4o"}


async def whole_run(opened: Opened, **fields: Any) -> Run:
    async with opened.producer.run(**(WHOLE | fields), request=b"{}", input="hi") as run:
        run.chunk("Hel")
        run.chunk("lo")
        await run.complete(b"raw", {"input_uncached": 3, "output_text": 2}, finish_reason="stop")
    return run


async def test_a_run_writes_its_events_in_order() -> None:
    async with producer_in_memory() as opened:
        run = await whole_run(opened)
        assert opened.transport.types() == [
            "run.created", "turn.appended", "turn.appended", "run.started", "chunk.batch",
            "run.completed", "usage.recorded",
        ]  # fmt: skip
        spoken, answer = opened.transport.of("turn.appended")
        assert (spoken["role"], spoken["answer_run"], spoken["run"]) == ("user", "", "")
        assert (answer["role"], answer["answer_run"]) == ("assistant", run.run)
        assert answer["frame"] == b""
        assert answer["turn"] == run.turn


async def test_content_opens_under_the_keys_that_the_body_names() -> None:
    async with producer_in_memory() as opened:
        await whole_run(opened)
        bodies = {kept.type: kept.body for kept in reversed(opened.transport.kept)}
        opened_by = {"run.created": "q", "chunk.batch": "o", "run.completed": "o"}
        content = {
            name: content_of(opened.grant, name, bodies[name], kind)
            for name, kind in opened_by.items()
        }
        spoken = content_of(opened.grant, "turn.appended", bodies["turn.appended"], "t")
        assert content["run.created"] == {"request": b"{}"}
        assert spoken == {"text": "hi"}
        assert [chunk[1:] for chunk in content["chunk.batch"]["chunks"]] == [
            [0, "text", "Hel"],
            [0, "text", "lo"],
        ]
        assert content["run.completed"]["response"] == b"raw"
        assert content["run.completed"]["output"] == [{"index": 0, "text": "Hello"}]


async def test_events_are_numbered_by_topic_and_named_after_their_number() -> None:
    async with producer_in_memory() as opened:
        run = await whole_run(opened)
        for topic in ("turnlog.runs", "turnlog.run-chunks", "turnlog.usage"):
            of_topic = [kept for kept in opened.transport.kept if kept.topic == topic]
            assert [kept.body["seq"] for kept in of_topic] == list(range(len(of_topic)))
            for kept in of_topic:
                natural_id = f"1/{kept.body['seq']}"
                assert kept.body["event_id"] == event_id(ORG, run.run, kept.type, natural_id)


async def test_producer_seq_is_gapless_per_partition_though_records_are_refused() -> None:
    async with producer_in_memory() as opened:
        for number in range(12):
            await whole_run(opened, conversation=f"c{number}")
        with pytest.raises(TooLarge):
            async with opened.producer.run(org=ORG, request=random_bytes(MAX_FRAME_BYTES)):
                pass
        await whole_run(opened, conversation="last")
        lanes: dict[tuple[str, int], list[int]] = {}
        for kept in opened.transport.kept:
            assert kept.body["producer_id"] == opened.producer.producer_id
            lanes.setdefault((kept.topic, kept.partition), []).append(kept.body["producer_seq"])
        assert all(seqs == list(range(len(seqs))) for seqs in lanes.values())


async def test_all_events_carry_one_key_locator_and_one_key() -> None:
    async with producer_in_memory() as opened:
        run = await whole_run(opened)
        for kept in opened.transport.kept:
            body = kept.body
            assert (body["key_tree"], body["key_day"], body["key_gen"]) == run.key_locator
            assert kept.key == f"{ORG}/c1".encode()
            assert kept.headers["ce_type"] == f"turnlog.{kept.type}".encode()
            assert kept.topic == TYPES[kept.type].topic


async def test_entering_waits_for_the_acknowledgement() -> None:
    async with producer_in_memory() as opened:
        opened.transport.hold = True
        entering = asyncio.create_task(opened.producer.run(org=ORG).__aenter__())
        await asyncio.sleep(0.01)
        assert not entering.done()
        opened.transport.hold = False
        opened.transport.release()
        run = await entering
        await run.complete()


async def test_an_exception_fails_the_run_and_propagates() -> None:
    async with producer_in_memory() as opened:
        with pytest.raises(KeyError):
            async with opened.producer.run(org=ORG):
                raise KeyError("secret words")
        (failed,) = opened.transport.of("run.failed")
        assert failed["error_code"] == "exception"
        assert content_of(opened.grant, "run.failed", failed, "o") == {"error": "KeyError"}
        (usage,) = opened.transport.of("usage.recorded")
        assert (usage["quality"], usage["reason"]) == ("unknown", "no_usage")


async def test_cancelling_the_task_cancels_the_run() -> None:
    async def stream(opened: Opened) -> None:
        async with opened.producer.run(org=ORG) as run:
            run.chunk("begun")
            await asyncio.sleep(60)

    async with producer_in_memory() as opened:
        task = asyncio.create_task(stream(opened))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert opened.transport.types()[-2:] == ["run.cancelled", "usage.recorded"]


async def test_cancelling_while_entering_ends_the_run_that_is_on_its_way() -> None:
    async with producer_in_memory() as opened:
        opened.transport.hold = True
        task = asyncio.create_task(whole_run(opened))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert opened.transport.types()[-2:] == ["run.cancelled", "usage.recorded"]


async def test_leaving_without_an_end_interrupts_the_run() -> None:
    async with producer_in_memory() as opened:
        async with opened.producer.run(org=ORG) as run:
            run.chunk("and then")
        assert opened.transport.types()[-2:] == ["run.interrupted", "usage.recorded"]


async def test_a_run_ends_once() -> None:
    async with producer_in_memory() as opened, opened.producer.run(org=ORG) as run:
        await run.complete()
        for end in (run.complete, run.fail, run.cancel, run.interrupt):
            with pytest.raises(UsageError, match="not open"):
                await end()
        with pytest.raises(UsageError, match="not open"):
            run.chunk("late")
        with pytest.raises(UsageError, match="begun before"):
            await run.__aenter__()


async def test_ticks_seal_what_is_due_and_beat() -> None:
    async with producer_in_memory() as opened, opened.producer.run(org=ORG) as run:
        run.tick(later_ns(0.1))
        assert opened.transport.types() == ["run.created"]
        run.chunk("early")
        run.tick(later_ns(0.1))
        assert opened.transport.types() == ["run.created", "run.started"]
        run.tick(later_ns(0.6))
        assert opened.transport.types()[2:] == ["chunk.batch"]
        run.chunk("x" * 16_384)
        run.tick(later_ns(0.0))
        assert opened.transport.types()[3:] == ["chunk.batch"]
        run.tick(later_ns(5.1))
        run.tick(later_ns(5.2))
        assert opened.transport.types()[4:] == ["run.heartbeat"]
        (beat,) = opened.transport.of("run.heartbeat")
        assert beat["output_chars"] == 5 + 16_384
        await run.complete()


async def test_an_end_that_is_too_large_leaves_the_run_open_and_it_ends_all_the_same() -> None:
    async with producer_in_memory() as opened:
        with pytest.raises(TooLarge):
            async with opened.producer.run(org=ORG) as run:
                run.chunk("shown")
                await run.complete(response=random_bytes(MAX_FRAME_BYTES))
        (failed,) = opened.transport.of("run.failed")
        content = content_of(opened.grant, "run.failed", failed, "o")
        assert content["error"] == "TooLarge"
        assert content["output"] == [{"index": 0, "text": "shown"}]


async def test_output_over_a_frame_still_ends() -> None:
    async with producer_in_memory() as opened:
        async with opened.producer.run(org=ORG) as run:
            run.chunk(random_bytes(1_000_000).hex())
        (ended,) = opened.transport.of("run.interrupted")
        assert ended["frame"] == b""
        assert ended["output_chars"] == 2_000_000
        assert len(opened.transport.of("chunk.batch")) > 1


async def test_a_broker_that_refuses_raises_and_the_model_is_not_called() -> None:
    async with producer_in_memory() as opened:
        opened.transport.refuse = Unavailable("Kafka: _MSG_TIMED_OUT")
        with pytest.raises(Unavailable, match="_MSG_TIMED_OUT"):
            await opened.producer.run(org=ORG).__aenter__()
        assert opened.transport.types() == ["run.created"]


async def test_a_lost_end_raises_and_the_callers_error_is_not_hidden() -> None:
    async with producer_in_memory() as opened:
        with pytest.raises(ZeroDivisionError) as caught:
            async with opened.producer.run(org=ORG):
                opened.transport.refuse = Unavailable("Kafka: _MSG_TIMED_OUT")
                raise ZeroDivisionError
        assert "was not recorded" in caught.value.__notes__[0]
        opened.transport.refuse = None
        with pytest.raises(Unavailable):
            async with opened.producer.run(org=ORG) as run:
                opened.transport.refuse = Unavailable("Kafka: _MSG_TIMED_OUT")
                await run.complete()


async def test_a_lost_chunk_batch_does_not_fail_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async with producer_in_memory() as opened, opened.producer.run(org=ORG) as run:
        run.chunk("secret words")
        opened.transport.refuse = Unavailable("Kafka: _MSG_TIMED_OUT")
        run.seal()
        await asyncio.sleep(0)
        opened.transport.refuse = None
        await run.complete()
        assert "is not in the log" in caplog.text
        assert "secret" not in caplog.text


def random_bytes(count: int) -> bytes:
    return random.Random(count).randbytes(count)
