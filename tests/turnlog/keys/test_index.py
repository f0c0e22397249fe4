import os

import pytest

from tests.turnlog.keys.helpers import ORG, RUN
from turnlog.errors import UsageError
from turnlog.keys.expand import expand
from turnlog.keys.index import Subject, index_of, part_of, user_prefix
from turnlog.keys.walk import dek_of

INDEX_KEY = os.urandom(32)
TREE = os.urandom(16)


def index(subject: Subject, day: int = 17, gen: int = 0) -> bytes:
    return index_of(INDEX_KEY, day, gen, subject)


def shared(a: Subject, b: Subject) -> int:
    return len(os.path.commonprefix([index(a), index(b)]))


def test_parts_stand_where_the_layout_says() -> None:
    found = index(RUN, day=9, gen=4)
    assert len(found) == 33
    assert (found[0], found[11], found[32]) == (9, 4, ord("o"))
    assert found[1:11] == expand(INDEX_KEY, b"turnlog/index/v1", b"u\0user_7", 10)
    assert found[12:22] == expand(INDEX_KEY, b"turnlog/index/v1", b"c\0conv_3", 10)
    assert found[22:32] == expand(INDEX_KEY, b"turnlog/index/v1", b"r\0run_01J", 10)


@pytest.mark.parametrize(("kind", "part"), [("o", b"r"), ("q", b"r"), ("t", b"t"), ("d", b"d")])
def test_a_kind_of_subject_has_a_kind_of_part(kind: str, part: bytes) -> None:
    assert index(RUN._replace(kind=kind))[22:32] == part_of(INDEX_KEY, part, "run_01J")


def test_what_belongs_together_shares_a_prefix() -> None:
    assert shared(RUN, RUN._replace(kind="q")) == 32
    assert shared(RUN, RUN._replace(id="run_2")) == 22
    assert shared(RUN, RUN._replace(conversation="conv_4")) == 12
    assert shared(RUN, RUN._replace(user="user_8")) == 1
    assert shared(RUN._replace(user=""), RUN._replace(user="", conversation="conv_4")) == 12
    assert index(RUN).startswith(user_prefix(INDEX_KEY, 17, "user_7"))


def test_ids_cannot_be_shifted_into_one_another() -> None:
    a, b = Subject(ORG, "ab", "c", "d", "o"), Subject(ORG, "a", "bc", "d", "o")
    assert dek_of(bytes(32), TREE, bytes(33), a) != dek_of(bytes(32), TREE, bytes(33), b)


@pytest.mark.parametrize(
    ("day", "gen", "kind"), [(0, 0, "o"), (32, 0, "o"), (1, -1, "o"), (1, 256, "o"), (1, 0, "x")]
)
def test_what_has_no_place_is_refused(day: int, gen: int, kind: str) -> None:
    with pytest.raises(UsageError, match="no index"):
        index_of(INDEX_KEY, day, gen, RUN._replace(kind=kind))
