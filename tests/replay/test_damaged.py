"""What a damaged spool makes of holes."""

from pathlib import Path

from processors.ledger import Hole, Lane, Mark, Ranges, judge
from replay.damaged import NO_SPOOL, Here, Piece, look_here, missing, unread, with_damage
from tests.turnlog.spool.test_damage import flip, left
from turnlog.config import load
from turnlog.spool import Spool

LANE = Lane("p1", 1, "turnlog.turns", 3)
SEEN = {LANE: Ranges([0, 1, 3, 5])}
MARKS = {LANE: Mark(1, False, 0, ((4, 4),))}
SILENT = Piece("p1", "turns-00000001.seg")


def holes(here: Here, org: str = "") -> list[Hole]:
    vouched = with_damage(MARKS, SEEN, here)
    found = judge(vouched, SEEN, {}).holes
    return found + missing(here, vouched, SEEN, {}, found, org)


def test_without_damage_what_lies_above_the_last_mark_is_unknown() -> None:
    assert holes(NO_SPOOL) == []


def test_a_damaged_record_that_says_its_number_is_missing_where_the_log_lacks_it() -> None:
    pieces = [Piece("p1", "s", LANE, seq, "acme") for seq in (2, 3, 4, 7)]
    found = holes(Here(damaged=tuple(pieces)))
    assert found == [Hole(LANE, 2, 2), Hole(LANE, 7, 7)]  # 3 arrived, 4 was refused
    assert holes(Here(damaged=tuple(pieces)), "other") == []


def test_what_retention_may_have_taken_is_not_missing() -> None:
    here = Here(damaged=(Piece("p1", "s", LANE, 2, "acme"),))
    assert missing(here, MARKS, {}, {LANE: 3}, [], "") == []


def test_where_damage_says_nothing_the_holes_of_its_dead_producer_are_missing() -> None:
    here = Here(damaged=(SILENT,))
    assert holes(here) == [Hole(LANE, 2, 2)]
    assert unread(here, "acme") == [SILENT]


def test_a_producer_that_runs_or_has_events_on_the_disk_may_still_fill_its_holes() -> None:
    for here in (Here(alive={"p1"}, damaged=(SILENT,)), Here(waiting={"p1"}, damaged=(SILENT,))):
        assert holes(here) == []
    assert Here(alive={"p1"}).state_of("p1") == "alive"
    assert Here(waiting={"p1"}).state_of("p1") == "waiting"
    assert NO_SPOOL.state_of("p1") == "gone"


async def test_a_record_whose_event_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    config = load(home=tmp_path)
    flip(await left(config.spool_folder, 2), 30)
    heir = await Spool.open(config.spool_folder, "heir")
    here = look_here(config)
    assert [piece.owner for piece in unread(here, "")] == ["dead"]
    assert "heir" in here.alive
    await heir.close()
