"""What librdkafka says of a broker that is away reaches a log, and does not fill it."""

import logging

import pytest
from confluent_kafka import Producer

from turnlog.kafka import logger


def test_a_broker_that_is_away_is_said_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    away = {"bootstrap.servers": "127.0.0.1:1", "reconnect.backoff.max.ms": 50}
    with caplog.at_level(logging.DEBUG, logger.name):
        producer = Producer({**away, "reconnect.backoff.ms": 10, "logger": logger})
        for _ in range(10):
            producer.poll(0.1)
    refused = [line for line in caplog.messages if "Connection refused" in line]
    assert len(refused) == 1
