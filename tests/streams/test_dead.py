"""Dead letters keep a record as it was."""

from confluent_kafka import Message

from streams.dead import Dead, DeadLetters, dead_counts, dead_letters, dead_record, dead_topics
from tests.streams.own_topic import new_topic
from turnlog.config import Config
from turnlog.kafka import read_all


def test_a_dead_letter_says_where_it_stood_and_keeps_its_bytes() -> None:
    made = dead_record(
        "usage", ("turnlog.usage", 3, 17), b"k", b"\xff\x00", "conflict", headers=[("ce_id", b"1")]
    )
    assert made[:3] == ("turnlog.usage.dead", b"k", b"\xff\x00")
    assert made.headers == [
        ("ce_id", b"1"),
        ("dlq-topic", b"turnlog.usage"),
        ("dlq-partition", b"3"),
        ("dlq-offset", b"17"),
        ("dlq-view", b"usage"),
        ("dlq-reason", b"conflict"),
        ("dlq-attempt", b"1"),
    ]


def test_the_bytes_and_the_headers_survive_and_repeats_count_once(stores: Config) -> None:
    topic = new_topic(stores)
    refused = Message(
        topic=topic, partition=1, offset=9, key=b"k", value=b"\xff", headers=[("ce_id", b"1")]
    )
    letters = DeadLetters(stores, "usage")
    letters.write([Dead(refused, "reason")])
    letters.write([Dead(refused, "reason")])
    stored = list(read_all(stores, f"{topic}.dead"))
    assert [(m.key(), m.value()) for m in stored] == [(b"k", b"\xff")] * 2
    assert ("ce_id", b"1") in (stored[0].headers() or [])
    (found,) = dead_letters(stores, [f"{topic}.dead"])
    assert (found.view, found.topic, found.partition, found.offset) == ("usage", topic, 1, 9)
    assert found.bytes == 1


def test_every_topic_that_views_read_has_dead_letters(stores: Config) -> None:
    assert {"turnlog.runs.dead", "turnlog.usage.dead", "turnlog.turns.dead"} <= set(dead_topics())
    assert set(dead_counts(stores)) <= {"usage", "runs", "packs", "locator", "conversations"}
