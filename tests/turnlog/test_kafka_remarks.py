"""What librdkafka says of a broker that is away reaches a log, and does not fill it."""

import logging
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from turnlog.kafka import Remarks, logger

AWAY = {"bootstrap.servers": "127.0.0.1:1", "reconnect.backoff.ms": 10, "logger": logger}


@pytest.fixture(autouse=True)
def silent_so_far(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other tests of this process may have had their broker away just now."""
    monkeypatch.setattr(logger, "filters", [Remarks()])
    yield


def listen() -> None:
    """Let three clients of a process look for a broker that is away."""
    consumer = Consumer({**AWAY, "group.id": "g"})
    producers = [Producer(AWAY) for _ in range(2)]
    for _ in range(10):
        consumer.poll(0.05)
        for producer in producers:
            producer.poll(0.05)
    consumer.close()


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_a_broker_that_is_away_is_said_once_in_a_while(
    caplog: pytest.LogCaptureFixture, level: int
) -> None:
    with caplog.at_level(level, logger.name):
        listen()
    said = [record for record in caplog.records if record.levelno > logging.DEBUG]
    assert [record.getMessage() for record in said] == ["Kafka does not answer at 127.0.0.1:1"]
    rest = [line for line in caplog.messages if "Connection refused" in line]
    assert bool(rest) is (level == logging.DEBUG)


def remark(text: str, facility: str = "FAIL") -> str | None:
    """Return what a log gets of a remark; None: nothing."""
    form = "%s [%s] %s"
    record = logger.makeRecord("", logging.ERROR, "", 0, form, (facility, "rdkafka", text), None)
    return record.getMessage() if logger.filter(record) else None


def test_what_else_librdkafka_says_is_said_in_its_own_words() -> None:
    for what in ("SASL authentication error: no", "SSL handshake failed: bad certificate"):
        text = f"[thrd:sasl_ssl://b:9093/1]: sasl_ssl://b:9093/1: {what}"
        assert (
            remark(f"{text} (after 7ms in state AUTH)")
            == f"FAIL [rdkafka] {text} (after 7ms in state AUTH)"
        )
        assert remark(f"{text} (after 9ms in state AUTH)") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[thrd:ssl://b.x:9093/3]: ssl://b.x:9093/3: Disconnected (after 9ms)", " at b.x:9093"),
        ("[thrd:GroupCoordinator]: GroupCoordinator: b:9092: Disconnected", " at b:9092"),
        ("[thrd:b:1/bootstrap]: b:1/bootstrap: Failed to resolve 'b:1': no", " at b:1"),
        ("[thrd:app]: rdkafka#producer-1: 1/1 brokers are down", ""),
    ],
)
def test_who_does_not_answer_is_named(text: str, said: str) -> None:
    assert remark(text) == f"Kafka does not answer{said}"
