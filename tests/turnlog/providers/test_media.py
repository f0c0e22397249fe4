"""Embeddings, images and audio in OpenAI's forms."""

from typing import Any

import pytest

from tests.turnlog.providers.lines import line, read, stream
from turnlog.providers import Exchange

HOST = "api.openai.com"
FORM = "multipart/form-data; boundary=x"


def media(route: str, response: Any, request: Any = None, **more: Any) -> Exchange:
    return read(line("openai", response, request, host=HOST, path=f"/v1/{route}", **more))


def used(exchange: Exchange) -> dict[str, int]:
    return {name: count for name, count in exchange.usage.classes.items() if count}


VECTORS = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.1, -0.2]}],
    "model": "text-embedding-3-small",
    "usage": {"prompt_tokens": 1000, "total_tokens": 1000},
}


def test_embeddings_are_billed_by_what_they_read() -> None:
    found = media("embeddings", VECTORS, {"model": "text-embedding-3-small", "input": "a b"})
    assert (found.form, found.status, found.model) == (
        "embeddings",
        "completed",
        "text-embedding-3-small",
    )
    assert found.usage.quality == "measured"
    assert used(found) == {"input_uncached": 1000}
    assert found.usage.cost_nano_usd == 20_000  # 0.02 USD a million
    assert (found.choices, found.warnings) == ([], [])


def test_embeddings_of_another_server_are_known_by_their_looks() -> None:
    found = read(line("vllm", VECTORS, host="llm.internal", path="/embed"))
    assert (found.form, found.usage.quality) == ("embeddings", "measured")
    assert used(found) == {"input_uncached": 1000}


def test_what_an_image_model_puts_out_are_images() -> None:
    usage = {
        "input_tokens": 50,
        "input_tokens_details": {"text_tokens": 10, "image_tokens": 40},
        "output_tokens": 1056,
        "total_tokens": 1106,
    }
    body = {"created": 1, "data": [{"b64_json": "aGk="}], "usage": usage}
    found = media("images/generations", body, {"model": "gpt-image-1", "prompt": "a cat"})
    assert (found.form, found.status, found.model) == ("images", "completed", "gpt-image-1")
    assert used(found) == {"input_uncached": 10, "image_in": 40, "image_out": 1056}
    assert found.usage.cost_nano_usd
    assert found.message is not None and found.message.text == "a cat"


def test_images_without_usage_are_unknown_and_not_free() -> None:
    body = {"created": 1, "data": [{"url": "https://x/y.png"}]}
    found = media("images/generations", body, {"model": "dall-e-3", "prompt": "a cat"})
    assert (found.usage.quality, found.usage.reason) == ("unknown", "no_usage")


def test_a_stream_of_images_ends_with_the_last() -> None:
    partial = {"type": "image_generation.partial_image", "b64_json": "aGk="}
    usage = {"input_tokens": 10, "output_tokens": 20, "input_tokens_details": {"text_tokens": 10}}
    last = {"type": "image_generation.completed", "b64_json": "aGk=", "usage": usage}
    where = {"host": HOST, "path": "/v1/images/generations"}
    whole = read(stream("openai", partial, last, **where))
    assert (whole.status, used(whole)) == ("completed", {"input_uncached": 10, "image_out": 20})
    cut = read(stream("openai", partial, **where))
    assert (cut.status, cut.usage.quality) == ("interrupted", "unknown")


HEARD = {
    "type": "tokens",
    "input_tokens": 14,
    "input_token_details": {"text_tokens": 4, "audio_tokens": 10},
    "output_tokens": 45,
    "total_tokens": 59,
}


def test_a_transcript_is_output_and_sound_is_input() -> None:
    found = media("audio/transcriptions", {"text": "Hello.", "usage": HEARD})
    assert (found.form, found.choices[0].text) == ("audio", "Hello.")
    assert used(found) == {"input_uncached": 4, "audio_in": 10, "output_text": 45}


def test_a_streamed_transcript_is_there_once() -> None:
    where = {"host": HOST, "path": "/v1/audio/transcriptions"}
    events = [{"type": "transcript.text.delta", "delta": piece} for piece in ("Hel", "lo.")]
    done = {"type": "transcript.text.done", "text": "Hello.", "usage": HEARD}
    found = read(stream("openai", *events, done, **where))
    assert (found.status, found.choices[0].text) == ("completed", "Hello.")
    assert [chunk.text for chunk in found.chunks] == ["Hel", "lo."]
    assert found.usage.quality == "measured"
    assert read(stream("openai", *events, **where)).status == "interrupted"


def test_what_is_billed_by_the_second_has_no_tokens() -> None:
    usage = {"type": "duration", "seconds": 9}
    found = media("audio/transcriptions", {"text": "Hello.", "usage": usage})
    assert (found.usage.quality, found.usage.reason) == ("unknown", "by_duration")
    assert found.usage.provider_usage == {"seconds": "9"}


def test_an_error_is_one_in_these_forms_too() -> None:
    body = {"error": {"message": "no such model", "code": "model_not_found"}}
    found = media("embeddings", body, status=404)
    assert (found.status, found.error_code, found.error) == ("failed", "http_404", "no such model")


@pytest.mark.parametrize("before", ["", "\r\nContent-Type: text/plain"])
def test_the_model_of_a_form_is_found(before: str) -> None:
    sent = (
        '--x\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n'
        "Content-Type: audio/wav\r\n\r\n\0\1\2\r\n"
        f'--x\r\nContent-Disposition: form-data; name="model"{before}\r\n\r\nwhisper-1\r\n--x--\r\n'
    )
    found = media(
        "audio/transcriptions",
        {"text": "Hello.", "usage": HEARD},
        request_headers={"Content-Type": FORM},
        request_body={"text": sent},
    )
    assert found.request_model == "whisper-1"


def test_a_list_that_is_no_answer_of_a_model_is_not_taken_for_one() -> None:
    found = media("files", {"object": "list", "data": [{"object": "file"}]})
    assert found.form == "other"
