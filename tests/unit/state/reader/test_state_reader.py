"""State as of a checkpoint against a model, whatever happened before; and what a reader refuses."""

import itertools
import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.locations.checkpoints import small_checkpoint, started
from tests.support.locations.histories import (
    GROUPS,
    NAMES,
    TTL_MS,
    Calm,
    History,
    Rows,
    Tiny,
    local,
    rows_of,
)
from tests.support.processes.script import run_script

from statelog.checkpoint import history
from statelog.checkpoint.history import present_ids
from statelog.checkpoint.restore import find_checkpoint
from statelog.checkpoint.verify import verify_location
from statelog.errors import (
    CheckpointError,
    ClosedError,
    CorruptionError,
    IncompatibleFormatError,
    StoreError,
    UsageError,
)
from statelog.format.segment import SNAPPY_FRAMED, parse_segment
from statelog.model import CompletedCheckpoint, KeyGroupRange
from statelog.runtime.clock import wall_clock_ms
from statelog.state.reader import LocationReader, StateReader, state_reader
from statelog.state.reader.checkpoint_chain import Changes
from statelog.state.schema import TIMERS_NAME
from statelog.store import ObjectStore
from statelog.testing.faulty_store import Fault, FaultKind, FaultyStore, OddError


@pytest.fixture(params=["at once", "in portions", "in columns"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore all key groups together, or few of them; in dictionaries or in columns."""
    if request.param == "in portions":
        monkeypatch.setattr(state_reader, "_PORTION_BYTES", 500)
        monkeypatch.setattr(state_reader, "_CACHED_BYTES", 5_000)
    elif request.param == "in columns":
        monkeypatch.setattr(state_reader, "MemoryLimits", lambda budget: Tiny(budget))


def read(store: ObjectStore, checkpoint_id: int | None = None) -> StateReader:
    return StateReader(store, find_checkpoint(store, checkpoint_id))


def everything(reader: StateReader, now_ms: int) -> dict[str, Rows]:
    return {name: rows_of(table) for name, table in reader.tables(now_ms=now_ms).items()}


def expected(history: History, checkpoint_id: int, now_ms: int | None) -> dict[str, Rows]:
    model = history.expected[checkpoint_id]
    names = [state.name for state in model.schema.states if not state.dropped]
    return {name: model.rows(name, now_ms) for name in names}


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("seed", range(6))
def test_every_retained_checkpoint_reads_as_the_model(seed, tmp_path):
    store = FaultyStore() if seed % 3 else local(tmp_path)
    history = History(seed, store)
    history.run()
    assert read(store).checkpoint_id == history.checkpoint_id
    for checkpoint_id in list(history.expected)[-3:]:
        reader = read(store, checkpoint_id)
        assert reader.checkpoint_id == checkpoint_id
        assert reader.schema == history.expected[checkpoint_id].schema
        # Of what had expired when a checkpoint was taken, its snapshots may lack some.
        taken_at_ms = history.taken_at_ms[checkpoint_id]
        for now_ms in (taken_at_ms, taken_at_ms + TTL_MS // 2, taken_at_ms + 2 * TTL_MS):
            assert expected(history, checkpoint_id, now_ms) == everything(reader, now_ms)


def test_expired_rows_are_left_out_unless_they_are_asked_for():
    store = FaultyStore()
    history = History("expired", store)
    while not any(state.ttl_ms for state in history.model.schema.states):
        history = History(history.rng.random(), FaultyStore())
    history.run(6)
    reader = read(history.store)
    names = [state.name for state in reader.variables() if state.ttl_ms is not None]
    for name in names:
        assert "expires_at_ms" in reader.arrow_schema(name).names
        assert not reader.table(name, now_ms=wall_clock_ms()).num_rows, "it expired years ago"
        assert reader.table(name) == reader.table(name, now_ms=reader.as_of_ms)
        stored = rows_of(reader.table(name, include_expired=True))
        every = history.model.rows(name, None)
        live = history.model.rows(name, history.now_ms)
        for key, rows in stored.items():
            assert {str(row[1:]) for row in rows} <= {str(row[1:]) for row in every[key]}
        for key, rows in live.items():
            assert {str(row[1:]) for row in rows} <= {str(row[1:]) for row in stored[key]}


@pytest.fixture(scope="module")
def finished() -> History:
    """Return a history that has ended, in memory; with all kinds of state."""
    for seed in range(100):
        history = History(f"finished {seed}", FaultyStore(), retained=2)
        history.run(8)
        live = {state.name for state in history.model.schema.states if not state.dropped}
        if live == {*NAMES, TIMERS_NAME} and read(history.store).checkpoint.materialized:
            return history
    raise AssertionError("no seed has all kinds of state")


@given(cuts=st.sets(st.integers(1, GROUPS - 1)), name=st.sampled_from([*NAMES, TIMERS_NAME]))
@settings(max_examples=60, deadline=None)
def test_key_group_ranges_partition_a_table(finished, cuts, name):
    reader = read(finished.store)
    bounds = [0, *sorted(cuts), GROUPS]
    ranges = [KeyGroupRange(start, stop - 1) for start, stop in itertools.pairwise(bounds)]
    now_ms = finished.last_ms
    parts = [reader.table(name, key_groups=part, now_ms=now_ms) for part in ranges]
    for part, key_groups in zip(parts, ranges, strict=True):
        assert set(part.column("key_group").to_pylist()) <= set(key_groups)
    whole = reader.table(name, now_ms=finished.last_ms)
    assert whole == reader.tables(now_ms=finished.last_ms)[name]
    assert whole.to_pylist() == pa.concat_tables(parts).to_pylist()
    assert reader.arrow_schema(name) == whole.schema
    assert not reader.table(name, key_groups=KeyGroupRange.empty()).num_rows


def test_a_portion_has_few_key_groups(finished, monkeypatch):
    monkeypatch.setattr(state_reader, "_PORTION_BYTES", 1)
    reader = read(finished.store)
    seen = [
        set(batch.column("key_group").to_pylist())
        for batch in reader.batches("recent", now_ms=finished.last_ms)
    ]
    assert all(len(key_groups) == 1 for key_groups in seen)
    assert sorted(seen, key=min) == seen


def test_reading_changes_nothing(tmp_path):
    history = History("still", local(tmp_path))
    history.run(4)

    def files() -> dict[Path, tuple[int, bytes]]:
        paths = [path for path in tmp_path.rglob("*") if path.is_file()]
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}

    before = files(), sorted(tmp_path.rglob("*"))
    with StateReader.open(tmp_path) as reader:
        everything(reader, history.last_ms)
    with StateReader.open(f"file://{tmp_path}", history.checkpoint_id) as reader:
        everything(reader, history.last_ms)
    assert before == (files(), sorted(tmp_path.rglob("*")))
    history.micro_batch()  # its owner has not lost its place


def test_a_checkpoint_that_is_deleted_while_it_is_read_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(state_reader, "_PORTION_BYTES", 1)
    monkeypatch.setattr(state_reader, "_CACHED_BYTES", 0)
    history = History("goes on", local(tmp_path), retained=1)
    history.run(3)
    reader = read(history.store)
    batches = reader.batches(TIMERS_NAME)
    assert next(batches).num_rows
    first = history.checkpoint_id
    needed = set(reader.checkpoint.referenced_paths())
    while needed & {info.path for info in history.store.list()}:  # later ones may need some too
        history.micro_batch()
    with pytest.raises(CheckpointError, match=f"checkpoint {first} .* was deleted while") as raised:
        list(batches)
    assert raised.value.reason == "subsumed"
    assert str(history.checkpoint_id) in str(raised.value)
    with pytest.raises(CheckpointError, match="does not exist"):
        read(history.store, first)
    assert expected(history, history.checkpoint_id, history.last_ms) == everything(
        read(history.store), history.last_ms
    )


def test_an_object_that_a_retained_checkpoint_lacks_is_reported():
    history = History("lacks", FaultyStore())
    history.run(6)
    reader = read(history.store)
    path = next(name for name in reader.checkpoint.referenced_paths() if "chk-" not in name)
    history.store.delete([path])
    with pytest.raises(CheckpointError, match=path) as raised:
        everything(reader, history.last_ms)
    assert (raised.value.reason, raised.value.path) == ("objects_missing", path)
    with pytest.raises(CheckpointError, match="objects do not exist"):
        read(history.store, history.checkpoint_id)


def test_a_query_that_deletes_all_that_was_listed_is_listed_again(finished, monkeypatch):
    listings = [[98, 99], present_ids(finished.store)]
    monkeypatch.setattr(history, "present_ids", lambda *_: listings.pop(0))
    assert find_checkpoint(finished.store).checkpoint_id == finished.checkpoint_id


@pytest.mark.parametrize("kind", [FaultKind.ERROR, FaultKind.ODD_ERROR, FaultKind.HANG])
def test_the_read_after_a_failed_read_is_right(finished, kind):
    store = finished.store
    assert isinstance(store, FaultyStore)
    checkpoint = find_checkpoint(store)
    for name in (*NAMES, TIMERS_NAME):
        reader = StateReader(store, checkpoint)
        store.next_fault = Fault(kind)
        with pytest.raises((StoreError, OddError)):
            reader.table(name)
        rows = rows_of(reader.table(name, now_ms=finished.last_ms))
        assert finished.model.rows(name, finished.last_ms) == rows


@pytest.mark.parametrize("seed", range(4))
def test_damage_is_reported(seed):
    """By whoever reads it; a reader of some change sets of a file does not read the others."""
    rng = random.Random(seed)
    history = History(f"damage {seed}", FaultyStore(), retained=1)
    history.run(7)
    store = history.store
    assert isinstance(store, FaultyStore)
    right = expected(history, history.checkpoint_id, history.last_ms)
    needed = {f"chk-{history.checkpoint_id}/_metadata", *find_checkpoint(store).referenced_paths()}

    def reported(path: str, content: bytes) -> set[str]:
        """Return the paths that `verify` reports; what is read is right, or refused by name."""
        whole, store.objects[path] = store.objects[path], content
        try:
            assert right == everything(read(store), history.last_ms)
        except (CorruptionError, CheckpointError, IncompatibleFormatError) as error:
            assert path in str(error)
        paths = {item.path for item in verify_location(store) if item.problem}
        store.objects[path] = whole
        return paths

    for path in sorted(store.objects):
        whole = store.objects[path]
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        if path not in reported(path, bytes(damaged)) and path in needed:
            # Blocks of Snappy can differ and still have the same content.
            assert parse_segment(damaged) == parse_segment(whole)
            assert damaged[0] == SNAPPY_FRAMED
    for path in needed:
        whole = store.objects[path]
        assert path in reported(path, whole[: len(whole) // 2])


def test_unknown_names_and_ids_list_the_known_ones(finished, tmp_path):
    reader = read(finished.store)
    with pytest.raises(
        UsageError, match=r"not have a state variable 'totals'; its variables are .*'total'"
    ):
        reader.table("totals")
    with pytest.raises(UsageError, match=r"\[0, 6\] are not all in \[0, 5\]"):
        reader.batches("total", key_groups=KeyGroupRange(0, GROUPS))
    with pytest.raises(CheckpointError, match=rf"99 does not exist .*{finished.checkpoint_id}"):
        read(finished.store, 99)
    subsumed = min(present_ids(finished.store))
    with pytest.raises(CheckpointError, match=r"no longer retained|does not exist"):
        read(finished.store, subsumed)
    with pytest.raises(UsageError, match=r"the directory .* does not exist"):
        StateReader.open(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    with pytest.raises(CheckpointError, match="does not contain a checkpoint") as raised:
        StateReader.open(tmp_path)
    assert raised.value.reason == "not_found"


def test_a_checkpoint_of_another_program_is_no_state():
    store = FaultyStore()
    small_checkpoint(started(store), 1)
    with pytest.raises(CheckpointError, match="not created by a streaming query"):
        read(store)


def test_the_checkpoints_of_an_error_have_objects_and_a_damaged_one_counts(tmp_path):
    store = local(tmp_path)
    owner = started(store)
    small_checkpoint(owner, 1)
    (tmp_path / "chk-7").mkdir()  # as after a deletion
    (tmp_path / "chk-9").mkdir()
    (tmp_path / "chk-9" / "_metadata").write_bytes(b"damaged" * 400)
    for unknown in (0, 7):  # a claim, and a folder
        with pytest.raises(CheckpointError, match=r"does not exist in .* \(newest: 1, 9\)"):
            read(store, unknown)


def test_a_closed_reader_reads_nothing(finished):
    with read(finished.store) as reader:
        batches = reader.batches("total")
    with pytest.raises(ClosedError, match="open a new one"):
        next(batches)


def test_neither_pyspark_nor_pandas_is_needed():
    run_script(
        "import sys, statelog.state.reader; "
        "sys.exit(bool({'pyspark', 'pandas', 'py4j'} & sys.modules.keys()))"
    )


EVERYTHING = KeyGroupRange(0, GROUPS - 1)


@pytest.mark.campaign
def test_lineage_is_decided_for_each_key_group():
    history = Calm("lineage", FaultyStore(), retained=5)
    for _ in range(5):
        history.micro_batch()
    state = LocationReader(history.store)
    first, last = (state.reader(number).checkpoint for number in (1, 4))
    assert Changes.of(first, last, EVERYTHING).rewritten == set()
    assert Changes.of(last, last, EVERYTHING).rewritten == set()
    touched = {kg for log in last.log if log.checkpoint_id > 1 for kg in log.key_group_range}
    assert Changes.of(last, first, EVERYTHING).rewritten == touched
    history.rewind(1)
    history.micro_batch()
    newest = LocationReader(history.store).reader().checkpoint
    assert Changes.of(last, newest, EVERYTHING).rewritten == touched
    assert Changes.of(first, newest, EVERYTHING).rewritten == set()


@pytest.mark.campaign
def test_key_groups_that_did_not_change_are_equal():
    unchanged = 0
    for seed in range(4):
        history = Calm(f"changed groups {seed}", FaultyStore(), retained=5)
        history.run(6)
        retained = list(history.expected)[-4:]
        newest = LocationReader(history.store).reader()
        for since, upto in ((0, 1), (0, 3), (2, 3), (3, 1)):
            # Both in one schema.
            before, after = (
                newest.of(checkpoint_of(history, retained[at])) for at in (since, upto)
            )
            changed = {kg for part in after.changed_groups(before.checkpoint) for kg in part}
            for group in set(EVERYTHING) - changed:
                unchanged += 1
                part = KeyGroupRange(group, group)
                first, last = (
                    reader.tables(key_groups=part, include_expired=True)
                    for reader in (before, after)
                )
                assert first.keys() == last.keys()
                for name, table in first.items():
                    assert rows_of(table) == rows_of(last[name]), (seed, since, upto, group)
    assert unchanged > 5


def checkpoint_of(history: History, checkpoint_id: int) -> CompletedCheckpoint:
    return LocationReader(history.store).reader(checkpoint_id).checkpoint
