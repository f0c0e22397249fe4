from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processors.conversation_rows import (
    Created,
    Decision,
    Head,
    MemoryRows,
    Refusal,
    Stored,
    Turn,
    canonical_rows,
    decision_key,
    pack,
    stream_of,
    turn_key,
    unpack_decision,
    unpack_stored,
    unpack_turn,
    visible_path,
)
from processors.conversations import MAX_PARTICIPANTS, fold, refusal_body
from tests.processors.conversation_events import (
    CONVERSATION,
    ORG,
    STREAM,
    At,
    appended,
    created,
    digest,
    event,
    fold_into,
    imported,
    placed,
    run,
)
from turnlog.events import Event, decode, encode


def path(rows: MemoryRows) -> list[str]:
    turns = {turn: row for (_, turn), row in rows.turns.items()}
    return [turn.turn for turn in visible_path(rows.heads[STREAM], turns)]


def children(rows: MemoryRows, parent: str) -> list[str]:
    head = rows.heads[STREAM]
    at = rows.turns[STREAM, parent].last_child if parent else head.last_root
    found = []
    while at:
        found.append(at)
        at = rows.turns[STREAM, at].older_sibling
    return found[::-1]


def test_appends_follow_each_other_and_move_the_leaf() -> None:
    rows, outcomes = run(created(), appended("a"), appended("b"), appended("c"))
    head = rows.heads[STREAM]
    assert path(rows) == ["a", "b", "c"]
    assert [o.turns[0].turn_seq for o in outcomes[1:]] == [1, 2, 3]
    assert (head.last_seq, head.turns, head.leaf, head.leaf_version) == (3, 3, "c", 3)
    assert head.applied == 3 and head.participants == ("u1",)
    assert rows.turns[STREAM, "b"].offset == 2 and rows.turns[STREAM, "b"].partition == 3


def test_a_conversation_may_be_created_after_its_first_turn() -> None:
    early, _ = run(created(), appended("a"))
    late, _ = run(appended("a"), created())
    assert digest(placed([created(), appended("a")])) == digest(placed([appended("a"), created()]))
    assert early.heads[STREAM].created == late.heads[STREAM].created


def test_an_append_with_another_last_seq_is_refused_and_recorded() -> None:
    stale = appended("b", expected_last_seq=0)
    rows, outcomes = run(appended("a"), stale)
    refused = outcomes[1].decision
    assert refused is not None and refused.refused == Refusal("conflict", 0, 1, None, 1)
    assert path(rows) == ["a"] and rows.heads[STREAM].refused == 1
    body = decode(encode("append.refused", refusal_body(stale.body, refused))).body
    assert body["refused_event_id"] == stale.body["event_id"] and body["last_seq"] == 1
    assert (body["refused_partition"], body["refused_offset"]) == (3, 1)


def test_a_refused_append_stays_refused_when_it_is_repeated_later() -> None:
    ahead = appended("b", expected_last_seq=1)
    rows, outcomes = run(ahead, appended("a"), ahead)
    assert outcomes[2].decision == outcomes[0].decision and not outcomes[2].changed
    assert path(rows) == ["a"]


def test_a_writer_may_try_a_refused_turn_again_under_a_new_key() -> None:
    rows, _ = run(
        appended("a"),
        appended("b", expected_last_seq=0),
        appended("b", expected_last_seq=1, natural_id="second"),
    )
    assert path(rows) == ["a", "b"]


def test_a_branch_is_a_sibling_and_leaves_the_leaf_alone_without_its_version() -> None:
    rows, outcomes = run(appended("a"), appended("b"), appended("b2", parent_turn="a"))
    assert path(rows) == ["a", "b"]
    assert children(rows, "a") == ["b", "b2"]
    assert outcomes[2].turns[0].turn_seq == 3 and rows.heads[STREAM].last_seq == 3


def test_a_branch_with_the_present_leaf_version_moves_the_leaf() -> None:
    rows, _ = run(appended("a"), appended("b"), appended("b2", parent_turn="a", leaf_version=2))
    assert path(rows) == ["a", "b2"]
    stale, _ = run(appended("a"), appended("b"), appended("b2", parent_turn="a", leaf_version=1))
    assert path(stale) == ["a", "b"]


def test_the_leaf_version_grows_with_every_move() -> None:
    rows = MemoryRows()
    seen = []
    events = [
        appended("a"),
        appended("b"),
        appended("x", parent_turn="a"),
        appended("y", parent_turn="a", leaf_version=2),
        appended("z", parent_turn="", leaf_version=4),
    ]
    for each in placed(events):
        fold_into(rows, [each])
        seen.append((rows.heads[STREAM].leaf, rows.heads[STREAM].leaf_version))
    assert seen == [("a", 1), ("b", 2), ("b", 2), ("y", 4), ("z", 5)]
    assert children(rows, "") == ["a", "z"] and children(rows, "a") == ["b", "x", "y"]


def test_a_branch_from_an_unknown_turn_is_refused() -> None:
    rows, outcomes = run(appended("a"), appended("b", parent_turn="nowhere"))
    decision = outcomes[1].decision
    assert decision is not None and decision.refused is not None
    assert decision.refused.reason == "no_parent"
    assert path(rows) == ["a"]


def test_a_repeat_changes_nothing_and_gives_its_outputs_again() -> None:
    rows, outcomes = run(appended("a"), appended("b"), appended("a"))
    assert outcomes[2].turns == (rows.turns[STREAM, "a"],)
    assert not outcomes[2].changed and not outcomes[2].dead
    # The frame of a repeat elsewhere is never shown: nobody has opened it.
    assert not outcomes[2].own_frame
    first = At(rows.turns[STREAM, "a"].partition, rows.turns[STREAM, "a"].offset)
    replayed = fold(rows, appended("a"), first)
    assert not replayed.changed and replayed.own_frame and not replayed.dead
    assert rows.heads[STREAM].applied == 1


def test_a_replayed_offset_changes_nothing() -> None:
    rows, _ = run(created(), appended("a"), appended("b"))
    before = (dict(rows.heads), dict(rows.turns), dict(rows.decisions))
    again = fold_into(rows, placed([created(), appended("a"), appended("b")]))
    assert not any(outcome.changed or outcome.dead for outcome in again)
    assert (rows.heads, rows.turns, rows.decisions) == before


@pytest.mark.parametrize(
    "other",
    [
        appended("a", content_mac=b"x" * 32),
        appended("a", user="u2"),
        appended("a", role="tool"),
        appended("a", project="p2"),
        appended("a", natural_id="another", content_mac=b"x" * 32),
        appended("b", natural_id="key-a"),
    ],
    ids=["content", "user", "role", "project", "turn under another event", "event of another turn"],
)
def test_the_same_identity_with_other_content_is_a_conflict(other: Event) -> None:
    rows, outcomes = run(appended("a"), other)
    assert outcomes[1].dead == "conflict" and not outcomes[1].changed
    assert path(rows) == ["a"] and rows.turns[STREAM, "a"].content_mac == b"a".ljust(32, b"m")


def test_a_turn_under_a_second_event_with_the_same_content_is_a_repeat() -> None:
    rows, outcomes = run(appended("a"), appended("a", natural_id="another"))
    assert not outcomes[1].dead and not outcomes[1].changed and len(rows.decisions) == 1


def test_a_second_beginning_under_another_key_is_recorded_and_its_frame_not_read() -> None:
    _, outcomes = run(appended("a"), appended("a", key_day=9, content_mac=b"x" * 32))
    assert outcomes[1].dead == "second_beginning"
    assert not outcomes[1].own_frame and not outcomes[1].changed


def test_a_second_creation_with_other_fields_is_a_conflict() -> None:
    _, outcomes = run(created(), created(), created("other"), created("other", user="u2"))
    assert [o.dead for o in outcomes] == ["", "", "", "conflict"]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (event("turn.edited", "e", turn="a"), "unsupported"),
        (event("conversation.deleted", "d"), "unsupported"),
        (event("run.created", "r", run="run_1"), "wrong_topic"),
        (appended("a", conversation="", run="run_1"), "no_conversation"),
        (event("turn.appended", "n"), "no_turn"),
        (imported(0, "a"), "import_seq"),
    ],
)
def test_what_the_fold_does_not_decide_goes_to_the_dead_letters(wrong: Event, reason: str) -> None:
    rows, outcomes = run(wrong)
    assert outcomes[0].dead == reason and rows.heads == {}


def test_a_new_event_below_the_applied_offset_is_not_lost_in_silence() -> None:
    rows, _ = run(appended("a"), appended("b"))
    for late in (appended("c"), created()):
        assert fold(rows, late, At(3, 1)).dead == "stale_offset"


def test_an_import_takes_its_place_between_turns_that_are_there() -> None:
    rows, outcomes = run(imported(1), imported(6), imported(2))
    assert path(rows) == ["t1", "t2", "t6"]
    assert {turn.turn for turn in outcomes[2].turns} == {"t1", "t2", "t6"}
    assert children(rows, "t1") == ["t2"] and children(rows, "t2") == ["t6"]
    assert rows.heads[STREAM].last_seq == 6 and rows.heads[STREAM].leaf_version == 6


def test_an_insertion_keeps_the_siblings_of_the_turn_that_it_moves() -> None:
    rows, _ = run(
        imported(1),
        imported(3),
        appended("x", parent_turn="t1"),
        appended("y", parent_turn="t1"),
        imported(2),
    )
    assert children(rows, "t1") == ["x", "y", "t2"] and children(rows, "t2") == ["t3"]


def test_participants_are_bounded_and_do_not_depend_on_the_order() -> None:
    users = [f"u{n:03}" for n in range(MAX_PARTICIPANTS + 20)]
    events = [imported(n + 1, user=user) for n, user in enumerate(users)]
    forward, _ = run(*events)
    backward, _ = run(*events[::-1])
    assert forward.heads[STREAM].participants == tuple(users[:MAX_PARTICIPANTS])
    assert forward.heads[STREAM].participants == backward.heads[STREAM].participants
    assert forward.heads[STREAM].more_participants and backward.heads[STREAM].more_participants


def test_an_append_touches_as_few_rows_late_as_early() -> None:
    rows = MemoryRows()
    counts = CountingRows(rows)
    reads = []
    for each, place in placed(appended(f"t{n}") for n in range(3_000)):
        counts.reads = 0
        outcome = fold(counts, each, place)
        fold_into(rows, [(each, place)])
        reads.append((counts.reads, len(outcome.turns)))
    assert set(reads[2:]) == {reads[5]}


class CountingRows(MemoryRows):
    def __init__(self, rows: MemoryRows) -> None:
        self.heads, self.turns, self.decisions = rows.heads, rows.turns, rows.decisions
        self.reads = 0

    def turn(self, stream: bytes, turn: str) -> Turn | None:
        self.reads += 1
        return super().turn(stream, turn)


imports = st.lists(st.integers(1, 12), min_size=1, max_size=14).map(
    # Two lines of a source may carry one number: their ids order them.
    lambda seqs: [imported(seq, f"t{seq}_{at}", user=f"u{at % 3}") for at, seq in enumerate(seqs)]
)


@given(imports, st.randoms(use_true_random=False))
def test_imports_give_the_same_rows_in_any_order(events: list[Event], random: object) -> None:
    events = [created(time_basis="import"), *events]
    shuffled = list(events)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert digest(placed(shuffled)) == digest(placed(events))
    rows, _ = run(*shuffled)
    order = [(rows.turns[STREAM, turn].turn_seq, turn) for turn in path(rows)]
    assert order == sorted(order) and len(order) == len(events) - 1
    assert all(children(rows, parent) == [child] for (_, parent), (_, child) in pairwise(order))


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    """Appends, branches, imports, stale appends, repeats and conflicts, mixed."""
    names = [f"t{n}" for n in range(8)]
    one = st.one_of(
        st.builds(appended, st.sampled_from(names)),
        st.builds(
            lambda t, p, v: appended(t, parent_turn=p, leaf_version=v),
            st.sampled_from(names),
            st.sampled_from([*names, ""]),
            st.none() | st.integers(0, 6),
        ),
        st.builds(
            lambda t, e: appended(t, expected_last_seq=e),
            st.sampled_from(names),
            st.integers(0, 6),
        ),
        st.builds(imported, st.integers(1, 9)),
        st.builds(lambda t: appended(t, content_mac=b"other".ljust(32)), st.sampled_from(names)),
        st.just(created()),
        st.just(event("leaf.selected", "l", turn="t0")),
    )
    return draw(st.lists(one, max_size=24))


@given(logs(), st.data())
def test_any_repetition_gives_the_same_rows(events: list[Event], data: st.DataObject) -> None:
    repeated = []
    for at, each in enumerate(events):
        repeated.append(each)
        repeated.extend(data.draw(st.lists(st.sampled_from(events[: at + 1]), max_size=2)))
    assert digest(placed(repeated)) == digest(placed(events))


@given(logs(), st.data())
def test_replaying_any_prefix_changes_nothing(events: list[Event], data: st.DataObject) -> None:
    log = list(placed(events))
    cut = data.draw(st.integers(0, len(log)))
    start = data.draw(st.integers(0, cut))
    rows = MemoryRows()
    fold_into(rows, log[:cut])
    replayed = fold_into(rows, log[start:cut])
    assert not any(outcome.changed for outcome in replayed)
    fold_into(rows, log[cut:])
    whole = MemoryRows()
    fold_into(whole, log)
    assert (rows.heads, rows.turns, rows.decisions) == (whole.heads, whole.turns, whole.decisions)


@given(logs(), logs(), st.data())
def test_conversations_do_not_depend_on_how_they_interleave(
    mine: list[Event], others: list[Event], data: st.DataObject
) -> None:
    others = [Event(each.type, each.body | {"conversation": "conv_2"}) for each in others]
    turns = data.draw(st.permutations([True] * len(mine) + [False] * len(others)))
    first, second = iter(mine), iter(others)
    mixed = [next(first) if mine_is_next else next(second) for mine_is_next in turns]
    assert digest(placed(mixed)) == digest(placed([*mine, *others]))


@settings(max_examples=50)
@given(logs())
def test_every_event_is_decided_or_in_the_dead_letters(events: list[Event]) -> None:
    rows, outcomes = run(*events)
    for each, outcome in zip(events, outcomes, strict=True):
        if outcome.dead:
            continue
        if each.type == "conversation.created":
            assert rows.heads[STREAM].created is not None
        else:
            decision = rows.decisions.get((STREAM, each.body["event_id"]))
            assert decision is not None or (STREAM, each.body["turn"]) in rows.turns


def test_rows_read_back_as_they_were_packed() -> None:
    head = Head(ORG, CONVERSATION, participants=("a", "b"), created=Created(b"e" * 16))
    turn = Turn("t", b"e" * 16, 3, import_seq=3, content_mac=b"m" * 32)
    decision = Decision("t", Refusal("conflict", None, 2, None, 2))
    bare = Stored(Head(ORG, CONVERSATION))
    stored = Stored(head, ((b"key", pack(turn)),))
    assert unpack_stored(pack(stored)) == stored and unpack_stored(pack(bare)) == bare
    assert unpack_turn(pack(turn)) == turn
    assert unpack_decision(pack(decision)) == decision
    assert unpack_decision(pack(Decision("t"))) == Decision("t")


def test_keys_tell_their_stream_and_kind() -> None:
    assert stream_of(turn_key(STREAM, "t")) == (STREAM, b"t")
    assert stream_of(decision_key(STREAM, b"\0" * 16)) == (STREAM, b"e")


def test_canonical_rows_hold_no_coordinates() -> None:
    events = [created(), appended("a"), appended("b", expected_last_seq=0), imported(9)]
    moved = [(each, At(5, place.offset + 70)) for each, place in placed(events)]
    assert digest(moved) == digest(placed(events))
    rows, _ = run(*events)
    found = list(
        canonical_rows(
            STREAM,
            rows.heads[STREAM],
            rows.turns.values(),
            [(event_id, decision) for (_, event_id), decision in rows.decisions.items()],
        )
    )
    assert {row["row"] for _, _, row in found} == {"created", "turn", "refused"}
    names = {name for _, _, row in found for name in row}
    assert not names & {"offset", "partition", "locator", "applied", "frame"}
    imports_only = [row for _, _, row in found if row.get("import_seq") == 9]
    assert imports_only[0]["occurred_at_us"] is None
