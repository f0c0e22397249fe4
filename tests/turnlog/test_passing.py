"""Which errors of Kafka are waited out, and which end who hears them."""

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from turnlog.config import Config
from turnlog.errors import Unavailable
from turnlog.kafka import partitions_of, reader_settings
from turnlog.passing import asked, bounds, passes


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
    ],
)
def test_a_consumer_goes_on_where_librdkafka_does(code: int) -> None:
    assert passes(KafkaError(code))


@pytest.mark.parametrize(
    "error",
    [
        KafkaError(KafkaError._FATAL),
        KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION, "fatal all the same", fatal=True),
        KafkaError(KafkaError._MAX_POLL_EXCEEDED),
        KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED),
        KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART),
        KafkaError(KafkaError._AUTO_OFFSET_RESET),
        KafkaError(KafkaError._PARTITION_EOF),
    ],
    ids=KafkaError.name,
)
def test_what_does_not_pass_by_itself_ends_it(error: KafkaError) -> None:
    assert not passes(error)


def test_a_question_is_asked_again_until_it_is_answered() -> None:
    answers = [
        KafkaError(KafkaError.FENCED_LEADER_EPOCH),
        KafkaError(KafkaError._UNKNOWN_PARTITION),
        KafkaError(KafkaError._DESTROY_BROKER),
        7,
    ]

    def question() -> int:
        answer = answers.pop(0)
        if isinstance(answer, KafkaError):
            raise KafkaException(answer)
        assert isinstance(answer, int)
        return answer

    assert asked(question, 10) == 7


@pytest.mark.parametrize(
    ("code", "patience_s"),
    [(KafkaError.TOPIC_AUTHORIZATION_FAILED, 10.0), (KafkaError.FENCED_LEADER_EPOCH, 0.0)],
)
def test_another_error_and_the_end_of_patience_are_told(code: int, patience_s: float) -> None:
    times = 0

    def question() -> None:
        nonlocal times
        times += 1
        raise KafkaException(KafkaError(code))

    with pytest.raises(Unavailable, match=KafkaError(code).name()):
        asked(question, patience_s)
    assert times <= 2


def test_the_bounds_of_a_partition_are_those_of_the_log(stack: Config) -> None:
    consumer = Consumer(reader_settings(stack, "read_committed"))
    try:
        for number in partitions_of(stack, "turnlog.billing"):
            first, end = bounds(consumer, "turnlog.billing", number, 10)
            assert 0 <= first <= end
    finally:
        consumer.close()
