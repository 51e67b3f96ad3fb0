"""A key removed: its state at once, and its bytes when the report says."""

import json
import pathlib
import random
import shlex

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.locations.checkpoints import put_named_tag
from tests.support.locations.edited_history import forget_in_model, location_of, restarted, states
from tests.support.locations.forked_query import sweep
from tests.support.locations.histories import History, key_of

import statelog
from statelog.checkpoint.edit import StagedRows, edit_session, newest_checkpoint
from statelog.checkpoint.retained import delete_tag, list_tags
from statelog.checkpoint.verify import verify_location
from statelog.cli.main import run as run_cli
from statelog.errors import CheckpointError, CorruptionError, IncompatibleFormatError, UsageError
from statelog.format.buffers import checksum
from statelog.format.checkpoint_metadata import OUTPUT_TAG
from statelog.format.segment import SegmentWriter, parse_segment
from statelog.model import FileStateHandle, KeyGroupRange, MaterializedHandle, TaskStateSnapshot
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.keyed_state import KeyedState
from statelog.store import PATHS, open_store

pytestmark = pytest.mark.campaign

NUMBER = 9
"""A key whose text is in no other key and in no value."""
TEXT = b"key 9"


def objects_with_text(history: History) -> set[str]:
    """Return the objects whose decoded content has the text of the key."""
    paths = set()
    for info in history.store.list():
        data = bytes(history.store.get(info.path))
        if TEXT in data or TEXT in decoded(info.path, data):
            paths.add(info.path)
    return paths


def decoded(path: str, data: bytes) -> bytes:
    folder = path.partition("/")[0]
    if folder == "taskowned":
        file = pq.ParquetFile(pa.BufferReader(data))
        groups = [file.metadata.row_group(at) for at in range(file.num_row_groups)]
        statistics = [
            str(group.column(at).statistics) for group in groups for at in range(group.num_columns)
        ]
        return repr((file.read().to_pylist(), statistics)).encode()
    if folder == "output":
        return repr(rows_of_stream(data)).encode()
    if folder == "dstl" or folder.startswith("chk-"):
        segment = parse_segment(data)
        sections = dict(segment.trailer.sections)
        streams = msgspec.msgpack.decode(sections.pop(OUTPUT_TAG, b"\x90"), type=list[bytes])
        rows = list(map(rows_of_stream, streams))
        return bytes(segment.payload) + repr(rows).encode() + b"".join(sections.values())
    return data


def stream(rows: list[dict]) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(rows)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def rows_of_stream(data: bytes) -> list[dict]:
    return pa.ipc.open_stream(data).read_all().to_pylist()


def with_output(history: History) -> list[dict]:
    """Give the newest checkpoint staged rows of several keys; return them."""
    base = newest_checkpoint(history.store)
    rows = [{"customer": {"k": n, "name": key_of(n)[1]}, "n": n} for n in (1, NUMBER, 2)]
    file = stream([{"names": [key_of(n)[1]], "k": n} for n in (NUMBER, 3)])
    path = PATHS.output(f"rows-{base.checkpoint_id}")
    history.store.put(path, file)
    staged = StagedRows(
        msgspec.msgpack.encode([stream(rows), stream(rows[:1])]),
        (FileStateHandle(path, len(file), checksum([file])),),
    )
    everything = KeyGroupRange(0, base.max_parallelism - 1)
    with edit_session(history.store, "test", retained=3) as session:
        session.claim(base)
        session.commit([TaskStateSnapshot(everything, None)], output=staged)
    return rows


def without_key(state: dict) -> dict:
    return {name: {k: v for k, v in rows.items() if k != NUMBER} for name, rows in state.items()}


def present(history: History) -> bool:
    return any(NUMBER in rows for rows in states(history).values())


def with_key(history_of, name: str) -> History:
    """Return a history in which the key has state."""
    histories = (history_of(f"{name} {seed}", 4) for seed in range(30))
    return next(history for history in histories if present(history))


@pytest.mark.parametrize("seed", range(12))
def test_state_of_the_key_is_deleted_and_the_report_names_its_traces(history_of, seed):
    history = history_of(f"forget {seed}", 6)
    with_output(history)
    location = location_of(history)
    before = states(history)
    planned = statelog.forget(location, key_of(NUMBER), apply=False)
    assert states(history) == before
    assert {trace.path for trace in planned.traces} == objects_with_text(history)
    report = statelog.forget(location, key_of(NUMBER), apply=True)
    assert report.removed == planned.removed
    assert states(history) == without_key(before)
    assert {trace.path for trace in report.traces} == objects_with_text(history)
    assert all(trace.leaves for trace in report.traces)
    again = statelog.forget(location, key_of(NUMBER), apply=True)
    assert (again.checkpoint_id, again.removed) == (None, {})
    assert not [finding for finding in verify_location(history.store) if finding.problem]


@pytest.mark.parametrize("seed", range(12))
def test_no_byte_of_the_key_is_left_with_now(history_of, seed):
    history = history_of(f"now {seed}", 6)
    rows = with_output(history)
    history.store.put("dstl/orphan", bytes(history.store.get(some_changelog(history))))
    location = location_of(history)
    before = states(history)
    planned = statelog.forget(location, key_of(NUMBER), now=True, apply=False)
    assert objects_with_text(history) == set(planned.deleted)
    assert states(history) == before
    report = statelog.forget(location, key_of(NUMBER), now=True, apply=True)
    assert objects_with_text(history) == set()
    assert report.traces == ()
    assert states(history) == without_key(before)
    assert report.given_up == planned.given_up
    assert set(planned.deleted) <= set(report.deleted)
    assert not [finding for finding in verify_location(history.store) if finding.problem]
    # The other rows of the micro-batch are delivered all the same.
    newest = newest_checkpoint(history.store)
    assert newest.checkpoint_id == report.checkpoint_id
    segment = parse_segment(history.store.get(PATHS.metadata(newest.checkpoint_id)))
    streams = msgspec.msgpack.decode(segment.trailer.sections[OUTPUT_TAG], type=list[bytes])
    assert list(map(rows_of_stream, streams)) == [[rows[0], rows[2]], rows[:1]]
    # The query goes on, and the key may come back.
    forget_in_model(history.model, NUMBER)
    restarted(history).run(2)
    for name, stored in states(history).items():
        assert in_order(stored) == in_order(history.model.rows(name, history.now_ms))


def in_order(rows: dict) -> dict:
    return {key: sorted(entries, key=repr) for key, entries in rows.items()}


def some_changelog(history: History) -> str:
    paths = sorted(info.path for info in history.store.list())
    return next((path for path in paths if path.startswith(("dstl/", "chk-"))), paths[0])


def test_each_trace_is_deleted_as_the_report_says(history_of):
    """Snapshots of all key groups and enough checkpoints: no byte is left."""
    history = with_key(history_of, "leaves")
    report = statelog.forget(location_of(history), key_of(NUMBER), apply=True)
    restarted(history)
    forget_in_model(history.model, NUMBER)
    retained = newest_checkpoint(history.store).retained
    for step in range(len(retained) + 1):
        idle(history, snapshot=step == 0)
        history.coordinator.clean_up()
    orphans = {trace.path for trace in report.traces if "garbage collection" in trace.leaves}
    assert objects_with_text(history) == orphans
    sweep(history.store)
    assert objects_with_text(history) == set()


def flipped(data: bytes, rng: random.Random) -> bytes:
    content = bytearray(data)
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_object_may_hold_the_key(history_of, seed):
    history = history_of(f"damaged {seed}", 6)
    with_output(history)
    location, rng = location_of(history), random.Random(seed)
    root = pathlib.Path(location)
    right = statelog.forget(location, key_of(NUMBER), apply=False).traces
    files = [file for file in root.rglob("*") if file.is_file()]
    for file in sorted(files):
        whole, path = file.read_bytes(), file.relative_to(root).as_posix()
        for damaged in [flipped(whole, rng) for _ in range(4)]:
            file.write_bytes(damaged)
            try:
                traces = statelog.forget(location, key_of(NUMBER), apply=False).traces
            except (CorruptionError, CheckpointError, IncompatibleFormatError) as error:
                assert path in str(error)
            else:
                assert traces == right
                # Blocks of Snappy can differ and still have the same content.
                assert path.startswith(("chk-", "dstl/"))
                assert parse_segment(damaged) == parse_segment(whole)
        file.write_bytes(whole)


def test_an_orphan_that_cannot_be_read_is_named(history_of):
    """It has no checksum, and the libraries that decode it raise errors of many kinds."""
    history = history_of("orphan", 6)
    with_output(history)
    location, rng = location_of(history), random.Random(1)
    root = pathlib.Path(location)

    def is_refused(orphan: str, content: bytes) -> bool:
        (root / orphan).write_bytes(content)
        try:
            statelog.forget(location, key_of(NUMBER), apply=False)
        except CorruptionError as error:
            assert orphan in str(error)
            assert "gc --apply" in str(error)
            return True
        finally:
            (root / orphan).unlink()
        return False

    rows, snapshot = (
        min((root / folder).iterdir()).read_bytes() for folder in ("output", "taskowned")
    )
    assert sum(is_refused("output/orphan", flipped(rows, rng)) for _ in range(200)) > 20
    for size in range(0, len(snapshot), 97):
        assert is_refused("taskowned/orphan", snapshot[:size])


def test_a_checkpoint_without_its_mark_may_hold_the_key(history_of):
    """Its staged rows are in the trailer, which a reader of Flink's files skips."""
    history = history_of("mark", 6)
    with_output(history)
    path = PATHS.metadata(newest_checkpoint(history.store).checkpoint_id)
    sections = parse_segment(history.store.get(path)).trailer.sections
    writer = SegmentWriter(compress=True)
    whole = b"".join(writer.finish({OUTPUT_TAG: sections[OUTPUT_TAG]}))
    history.store.put("chk-0/_metadata", whole)  # not retained
    report = statelog.forget(location_of(history), key_of(NUMBER), apply=False)
    assert "chk-0/_metadata" in {trace.path for trace in report.traces}
    history.store.delete(["chk-0/_metadata"])
    history.store.put("chk-0/_metadata", whole[:-1] + b"?")
    with pytest.raises(CorruptionError, match=r"chk-0/_metadata.*not statelog's mark"):
        statelog.forget(location_of(history), key_of(NUMBER), apply=False)


def idle(history: History, *, snapshot: bool) -> None:
    """Commit a checkpoint without changes, with a snapshot of everything if wanted."""
    coordinator = history.coordinator
    base, checkpoint_id = coordinator.latest, coordinator.next_checkpoint_id
    everything = KeyGroupRange(0, base.max_parallelism - 1)
    handle = None
    if snapshot:
        state = KeyedState(OperatorCodec(history.model.schema))
        state.catch_up(
            everything, base.checkpoint_id, (), lambda: (history.store, base.for_range(everything))
        )
        data = state.snapshot(everything, {}, -1)
        path = PATHS.task_owned("all")
        history.store.put(path, data)
        file = FileStateHandle(path, len(data), checksum([data]))
        handle = MaterializedHandle(everything, base.checkpoint_id, file)
    coordinator.trigger(checkpoint_id, [everything])
    coordinator.acknowledge(checkpoint_id, TaskStateSnapshot(everything, None, handle))
    coordinator.complete(checkpoint_id, properties=history.record().to_properties())


def test_tags_and_forks_are_named_and_stop_a_rewrite(history_of):
    history = with_key(history_of, "tags")
    tag = put_named_tag(history.store, "kept", newest_checkpoint(history.store).checkpoint_id)
    location = location_of(history)
    report = statelog.forget(location, key_of(NUMBER), apply=False)
    pinned = [trace for trace in report.traces if trace.pins]
    assert {("tag kept",)} == {trace.pins for trace in pinned}
    assert all("statelog tag --remove" in trace.leaves for trace in pinned)
    with pytest.raises(CheckpointError, match="are pinned by tag kept; nothing was changed"):
        statelog.forget(location, key_of(NUMBER), now=True, apply=True)
    assert present(history)
    delete_tag(history.store, tag)
    statelog.forget(location, key_of(NUMBER), now=True, apply=True)
    assert objects_with_text(history) == set()


def test_a_fork_names_its_parents_that_hold_the_key_last(history_of, capsys):
    history = with_key(history_of, "fork")
    parent = location_of(history)
    first, second = f"{parent} first", f"{parent} second"
    statelog.fork(parent, first, state_only=True)
    statelog.fork(first, second, state_only=True)
    key = [str(part) for part in key_of(NUMBER)]

    def last_line(location: str, *options: str) -> str:
        assert run_cli(["forget", *options, location, *key]) == 0
        return capsys.readouterr().out.splitlines()[-1]

    assert statelog.forget(second, key_of(NUMBER), apply=False).parents == (f"file://{parent}",)
    expected = "The parent of this fork contains the key too: statelog forget "
    assert last_line(second, "--now").startswith(f"{expected}--now --apply -- ")
    assert last_line(second, "--apply").startswith(f"{expected}--apply -- ")
    [tag] = list_tags(open_store(first))
    run_cli(["forget", "--now", second, *key])
    may_be = f"{tag.path} in file://{first}, the parent of this fork, may be deleted"
    assert may_be in capsys.readouterr().out
    hint = last_line(second, "--now", "--apply")
    assert hint.startswith(expected)
    assert present(history)
    for tag in statelog.tags(parent):  # the first fork may need other objects of the checkpoint
        statelog.untag(parent, tag.name, kind="fork", apply=True)
    # The command that the fork gave is the one that removes the key.
    assert run_cli(shlex.split(hint.partition(": ")[2])[1:]) == 0
    capsys.readouterr()
    assert not present(history)
    assert objects_with_text(history) == set()


def test_on_the_command_line(history_of, capsys):
    history = with_key(history_of, "cli")
    location = location_of(history)

    def call(*arguments: str, status: int = 0) -> str:
        assert run_cli(["forget", location, *arguments]) == status
        said = capsys.readouterr()
        return said.out + said.err

    key = [str(part) for part in key_of(NUMBER)]
    assert "This was a dry run; --apply makes the changes. Stop the query first." in call(*key)
    planned = json.loads(call(*key, "--now", "--json"))
    assert planned["given_up"]
    assert planned["dry_run"]
    assert "in checkpoint chk-" in call(*key, "--apply")
    assert "no object of this location contains the key" in call(*key, "--now", "--apply")
    assert "has no state" in call(*key)
    assert "a key requires a value for each" in call("1", status=2)
    with pytest.raises(UsageError, match="does not have an operator 'x'"):
        statelog.forget(location, key_of(1), operator="x", apply=True)
