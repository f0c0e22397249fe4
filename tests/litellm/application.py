"""A program that calls models through LiteLLM's SDK; run by a test, in LiteLLM's environment.

Each call says in `metadata.turnlog.run_group` what it is, so that the test finds its runs.
"""

import asyncio
import contextlib
import gc
import sys
from typing import Any

import litellm  # type: ignore[import-not-found]
import openai

import turnlog.litellm

BASE = sys.argv[1]
SAY = [{"role": "user", "content": "Shorten the link, please."}]


def chat(name: str, scenario: str = "", **more: Any) -> dict[str, Any]:
    base = f"{BASE}/~{scenario}" if scenario else BASE
    return {
        "model": "openai/gpt-4o-mini",
        "messages": SAY,
        "api_base": f"{base}/v1",
        "api_key": "sk-never-to-be-recorded",
        "num_retries": 0,
        "max_retries": 0,
        "metadata": {"turnlog": {"run_group": name, "user": "u-1"}, "secret": "m-never"},
        **more,
    }


def claude(name: str, **more: Any) -> dict[str, Any]:
    return {**chat(name, **more), "model": "anthropic/claude-sonnet-4-5", "api_base": BASE}


def waiting() -> None:
    litellm.completion(**chat("sync"))
    list(litellm.completion(**chat("sync-stream", stream=True)))
    with contextlib.suppress(openai.OpenAIError):
        litellm.completion(**chat("sync-failed", "status=500"))
    litellm.embedding(
        **{**chat("sync-embedding"), "model": "openai/text-embedding-3-small", "input": ["a"]}
    )
    for _ in litellm.completion(**chat("sync-left", "pace_ms=20", stream=True)):
        break
    gc.collect()


async def not_waiting() -> None:
    await litellm.acompletion(**chat("async"))
    stream = await litellm.acompletion(**chat("async-stream", stream=True))
    assert [chunk async for chunk in stream]
    await litellm.acompletion(**claude("anthropic"))
    with contextlib.suppress(openai.OpenAIError):
        await litellm.acompletion(**chat("async-limited", "status=429"))
    await retried()
    await litellm.aembedding(
        **{**chat("embedding"), "model": "openai/text-embedding-3-small", "input": ["a"]}
    )
    await litellm.aimage_generation(
        **{**chat("image"), "model": "openai/gpt-image-1", "prompt": "a link"}
    )
    await litellm.aresponses(**{**chat("responses"), "input": "Shorten it."})
    await litellm.acompletion(**{**chat("unlogged"), "no-log": True})
    await gone()
    await asyncio.sleep(1)


async def retried() -> None:
    parameters = chat("", "status=500,times=1")
    deployment = {name: parameters[name] for name in ("model", "api_base", "api_key")}
    named = [{"model_name": "gpt", "litellm_params": {**deployment, "max_retries": 0}}]
    router = litellm.Router(model_list=named, num_retries=2, retry_after=0)
    about = chat("retried")["metadata"]
    await router.acompletion(model="gpt", messages=SAY, metadata=about)


async def gone() -> None:
    call = asyncio.ensure_future(litellm.acompletion(**chat("cancelled", "delay_ms=9000")))
    await asyncio.sleep(0.5)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    stream = await litellm.acompletion(**chat("left", "pace_ms=20", stream=True))
    async for _ in stream:
        break
    await stream.aclose()
    del call, stream
    gc.collect()


litellm.callbacks = [turnlog.litellm.logger]
waiting()
asyncio.run(not_waiting())
gc.collect()
