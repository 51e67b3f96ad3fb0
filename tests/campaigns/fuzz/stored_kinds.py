"""The samples of a campaign, as the library writes them, and the list of its kinds."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.campaigns.fuzz import kinds, mutations
from tests.campaigns.fuzz.kinds import Kind, equal
from tests.campaigns.fuzz.samples import stream_of
from tests.support.locations.histories import GROUPS, NAMES, History, key_of
from tests.support.locations.stored_job import StoredJob
from tests.support.stores.dict_store import DictStore

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.checkpoint.attachments import Attachment
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import Entries, read_checkpoint, read_entry
from statelog.checkpoint.ownership import describe_claim
from statelog.checkpoint.query_files import (
    entries_digest,
    files_upto,
    newest_offsets,
    recorded_query_id,
    refuse_unfinished_repartition,
)
from statelog.checkpoint.retained import Tag, TagKind, list_tags
from statelog.checkpoint.tags import put_tag, read_tag
from statelog.checkpoint.verify import verify_location
from statelog.errors import ProcessorError, StatelogError
from statelog.extensions.broadcasts.stored import read_broadcast
from statelog.extensions.operations.key_traces import staged_rows as python_rows
from statelog.extensions.read.location_state import LocationState
from statelog.extensions.recordings.format import decode_file
from statelog.extensions.recordings.step import steps_of
from statelog.extensions.side_outputs.stored import read_side_rows
from statelog.format.arrow_data import write_stream
from statelog.format.buffers import checksum
from statelog.format.checkpoint_metadata import OUTPUT_TAG, decode_streams, rewrite_metadata
from statelog.format.checkpoint_record import CHECKPOINT_TAG, ClaimRecord, decode_record
from statelog.format.segment import SegmentWriter, parse_segment
from statelog.format.trailer import SETS_TAG
from statelog.model import ChangeBatch, KeyGroupRange
from statelog.runtime.clock import RandomIds
from statelog.spark.query.record import Record
from statelog.spark.rows.types import from_ipc
from statelog.state.columnar.run_files import RunFiles
from statelog.state.columnar.sorted_run import RowLayout, SortedRun
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import (
    SCHEMA_METADATA,
    is_of_schema,
    parquet_of,
    read_snapshot,
    snapshot_row_count,
    snapshot_tables,
)
from statelog.state.schema import OperatorStateSchema
from statelog.store import PATHS
from statelog.store.encryption import EncryptedStore, EncryptionKeys, encrypt
from statelog.store.parents import ParentReference, confirmed_by

GOLDEN = Path(__file__).parents[2] / "golden"
ALL_GROUPS = KeyGroupRange(0, GROUPS - 1)
KEYS = EncryptionKeys({"k1": b"\x01" * 32})


def store_with(**objects: bytes) -> DictStore:
    store = DictStore()
    for path, data in objects.items():
        store.objects[path] = (data, store.now)
    return store


def objects_of(store: DictStore, prefix: str) -> list[bytes]:
    objects = [data for path, (data, _) in store.objects.items() if path.startswith(prefix)]
    return sorted(objects, key=lambda data: (len(data), data))  # some names are random


# ----------------------------------------------------------------------------- files of the changelog


def segments(compress: bool) -> list[bytes]:
    """Return changelog files that the library's writer put."""
    store = DictStore()
    from statelog.options import ChangelogOptions, Options

    options = Options(changelog=ChangelogOptions(compression_enabled=compress))
    rng = random.Random(1)
    with FsStateChangelogStorage.from_options(options, store, job_id="") as storage:
        for size in (1, 30, 3000):
            writer = storage.create_writer("op", KeyGroupRange(0, 9))
            writer.append_meta(b"meta")
            for _ in range(rng.randrange(2, 12)):
                writer.append(rng.randrange(10), rng.randbytes(size))
            writer.persist(writer.initial_sequence_number(), checkpoint_id=1).result()
            writer.close()
    return objects_of(store, "dstl/")


def read_metadata(data: bytes) -> Any:
    """Read all of a `_metadata` object: record, batch record, schemas, changes and staged rows."""
    segment = parse_segment(data)
    sections = {} if segment.trailer is None else segment.trailer.sections
    checkpoint = decode_record(sections.get(CHECKPOINT_TAG, b""))
    number = checkpoint.checkpoint_id
    where = PATHS.metadata(number)
    stored = read_checkpoint(store_with(**{where: data}), number)
    staged = decode_streams(stored.sections.get(OUTPUT_TAG), where=where)
    rows = [python_rows(from_ipc(stream)) for stream in staged]
    batch = BatchRecord.of(stored.checkpoint)
    for operator in batch.operators:
        OperatorCodec(OperatorStateSchema.from_json(operator.schema))
    changes = kinds.read_sets(segment)
    rewrite_metadata(data, checkpoint)
    return repr((stored.checkpoint, rows, batch.staged_files(), changes))


def with_staged_rows(data: bytes) -> bytes:
    """Return a `_metadata` object with staged rows."""
    segment = parse_segment(data)
    assert segment.trailer is not None
    batch = pa.record_batch({"n": list(range(40)), "t": ["text"] * 40})
    section = kinds.msgspec.msgpack.encode([write_stream([batch], batch.schema)] * 2)
    sections = {**segment.trailer.sections, OUTPUT_TAG: section}
    return kinds.segment_of(
        bytes(segment.payload), segment.trailer.sets, sections, segment.compressed
    )


# -------------------------------------------------------------------------------- changes of state


def change_sets(history: History) -> list[bytes]:
    segments = []
    for data in objects_of(history.store, "chk-") + objects_of(history.store, "dstl/"):
        segment = parse_segment(data)
        for offset, size in segment.set_ranges():
            payload = bytes(segment.payload[offset : offset + size])
            segments.append(kinds.segment_of(payload, (), {SETS_TAG: b"\x00" * 4}, False))
    return segments[-12:]


def shown(value: Any) -> str:
    """Return the text of a value without the addresses of objects."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def changes_reader(codec: OperatorCodec) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        segment = parse_segment(data)
        shown_changes = []
        position = 0
        while position < len(segment.payload):
            decoded = kinds.decode_change_set(segment.payload, position)
            batch = decoded.batch
            overlays = codec.reader().decode(batch.key_groups.tolist(), batch.values.to_pylist())
            shown_changes.append(
                sorted((group, shown(overlay)) for group, overlay in overlays.items())
            )
            position = decoded.end
        return None if segment.trailer is None else shown_changes

    return read


def forged_change(rng: random.Random, data: bytes) -> bytes:
    """Change one value in a change set: its schema, or the Arrow message of a change."""
    segment = parse_segment(data)
    batch = kinds.decode_change_set(segment.payload, 0).batch
    values, key_groups = batch.values.to_pylist(), batch.key_groups.copy()
    at = rng.randrange(len(values))
    change = kinds.json_forgery if key_groups[at] == -1 and rng.random() < 0.7 else mutations.raw
    values[at] = change(rng, values[at])
    if rng.random() < 0.1:
        key_groups[at] = rng.choice((0, -1, GROUPS, 2**15))
    writer = SegmentWriter()
    writer.add([ChangeBatch(key_groups, pa.array(values, pa.binary()))])
    return b"".join(bytes(piece) for piece in writer.finish())


def forged_snapshot(rng: random.Random, data: bytes) -> bytes:
    """Write a snapshot again with another column, type, schema or order."""
    table = pq.read_table(pa.BufferReader(data))
    at = rng.randrange(table.num_columns)
    name, column = table.column_names[at], table.column(at)
    metadata = dict(table.schema.metadata or {})
    choice = rng.randrange(7)
    if choice == 0:
        table = table.drop_columns([name])
    elif choice == 1:
        table = table.set_column(at, name, pa.nulls(table.num_rows, column.type))
    elif choice == 2:
        other = rng.choice((pa.array(["x"] * table.num_rows), pa.array([2**40] * table.num_rows)))
        table = table.set_column(at, name, other)
    elif choice == 3:
        numbers = [rng.choice((-1, 0, 5, GROUPS, 2**31 - 1)) for _ in range(table.num_rows)]
        table = table.set_column(0, "key_group", pa.array(numbers, pa.int32()))
    elif choice == 4:
        table = pa.concat_tables([table, table.slice(0, 1)] * 2)
    elif choice == 5:
        table = table.rename_columns([*table.column_names[:-1], table.column_names[0]])
    else:
        metadata[SCHEMA_METADATA] = kinds.json_forgery(rng, metadata[SCHEMA_METADATA])
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.replace_schema_metadata(metadata), sink, row_group_size=rng.choice((1, 3, 1000))
    )
    return bytes(sink.getvalue())


def snapshot_reader(codec: OperatorCodec) -> Callable[[bytes], Any]:
    layout = RowLayout(codec)

    def read(data: bytes) -> Any:
        tables = read_snapshot(codec, data, ALL_GROUPS)
        snapshot_row_count(data, ALL_GROUPS)
        if is_of_schema(codec, data):
            for _, table in snapshot_tables(data, ALL_GROUPS, layout.table_schema, 2):
                python_rows(table)
        return shown(tables)

    return read


def run_file_kind(codec: OperatorCodec, snapshots: Sequence[bytes], folder: Path) -> Kind:
    """Return the kind of the files that a worker keeps on its local disk."""
    layout = RowLayout(codec)
    files = RunFiles(folder, "here", layout, RandomIds())
    for data in snapshots:
        if not is_of_schema(codec, data):
            continue
        for part, table in snapshot_tables(data, ALL_GROUPS, layout.table_schema, GROUPS):
            hashes = layout.hashes(
                table.combine_chunks().to_batches()[0].columns[1 : layout.first_state]
            )
            rows = table.append_column(layout.schema.field(-1), pa.array(hashes, pa.uint64()))
            batch = rows.combine_chunks().to_batches()[0].cast(layout.schema)
            files.write(SortedRun(part, batch), ["x"] * len(part), 1)
    paths = sorted(files.folder.glob("*.run"))
    samples = {path: path.read_bytes() for path in paths}
    path = paths[0]

    def read(data: bytes) -> Any:
        path.write_bytes(data)
        runs = [files.open(file) for file in files.find(ALL_GROUPS) if file.path == path]
        return [python_rows(run.live_table(run.key_group_range)) for run in runs] or None

    def forge(rng: random.Random, data: bytes) -> bytes:
        size = int.from_bytes(data[-16:-8], "little")
        rows, header = mutations.raw(rng, data[:size]), data[size:-24]
        if rng.random() < 0.3:
            header = kinds.json_forgery(rng, header)
        crc = kinds.checksum([rows, header])
        length = rng.choice((len(rows),) * 8 + (0, 2**62))
        tail = crc.to_bytes(4, "little") + len(header).to_bytes(4, "little")
        return rows + header + tail + length.to_bytes(8, "little") + data[-8:]

    same = kinds.same_or_foreign  # a file whose name and header differ is not used
    return Kind("local state", [samples[path]], read, (forge,), same)


# ----------------------------------------------------------------------------- tags, claims, parents


TAGS = {"tag": TagKind.TAG, "fork pin": TagKind.FORK, "reader pin": TagKind.READER}
TAG_FORGERIES = (
    kinds.section_forgery(b"TAGS", kinds.json_forgery),
    kinds.section_forgery(b"FILE", kinds.msgpack_forgery),
    kinds.forged_section,
)


def tag_kind(name: str, history: History, kind: TagKind, job: StoredJob) -> Kind:
    facts = {"location": "file:///fork", "comment": "text"}
    files = {
        name: job.query.read(name) or b"" for name in ("offsets/1", "commits/1", "sources/0/1")
    }
    tag = Tag(kind=kind, name="name", checkpoint_id=history.checkpoint_id)
    stored = put_tag(history.store, tag, clock_ms=lambda: 5, facts=facts, files=files)
    data = history.store.objects.pop(stored.path)[0]
    path = PATHS.tag(kind.value, "name", 1, 0, "0" * 16)

    def read(data: bytes) -> Any:
        store = store_with(**{path: data})
        confirmed_by(store, path)
        return repr(read_tag(store, list_tags(store)[0]))

    return Kind(name, [data], read, TAG_FORGERIES)


def read_parent(data: bytes) -> Any:
    return repr(ParentReference.read(store_with(**{PATHS.parent("f"): data}), "f"))


def read_claim(data: bytes) -> Any:
    """Read a claim, as a new owner and as a fenced one do."""
    store = store_with(**{PATHS.metadata(0): data})
    entry = read_entry(store, 0, whole=True)
    entries = Entries(store)
    end = (entries.ids, entries.newest_id(), entries.next_number)
    claim = describe_claim(entry) if isinstance(entry, ClaimRecord) else ""
    return repr((entry, end, claim))


# ----------------------------------------------------------------------------- files of a Spark query


class OneFile:
    """A checkpointLocation with one file changed."""

    url = "file:///query"

    def __init__(self, job: StoredJob, name: str, data: bytes) -> None:
        self._query, self._name, self._data = job.query, name, data

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        if name == self._name:
            return self._data if tail is None else self._data[-tail:]
        return None if name.endswith(".crc") else self._query.read(name, tail)

    def names(self, folder: str) -> Sequence[str]:
        return self._query.names(folder)


def query_kinds(job: StoredJob) -> Iterator[Kind]:
    """Yield the kinds of files below a checkpointLocation; they have no checksum of statelog's."""
    last = job.batch_id
    offsets, source = f"offsets/{last}", f"sources/0/{last}"
    readers: dict[str, tuple[str, Callable[[OneFile], Any]]] = {
        "query id": ("metadata", recorded_query_id),
        "offset log": (offsets, newest_offsets),
        "planned settings": (offsets, refuse_unfinished_repartition),
        "source log": (source, lambda files: files_upto(files, "0", last)),
        "source position": (source, lambda files: entries_digest(files, "0", last - 1, last)),
    }
    for name, (file, reader) in readers.items():
        data = job.query.read(file)
        assert data is not None

        def read(data: bytes, file: str = file, reader: Callable[[OneFile], Any] = reader) -> Any:
            return reader(OneFile(job, file, data))

        yield Kind(name, [data], read, (kinds.lines_forgery,))


# --------------------------------------------------------------------------------------- recordings


def recordings(folder: Path) -> list[bytes]:
    """Return the recordings of a job, one of them of a key that failed."""
    from tests.support.jobs.recorded_job import RecordedJob
    from tests.support.jobs.recorded_processors import COLUMNS, OUTPUT, FrameSteps, Steps

    files = []
    for at, processor in enumerate((Steps(), FrameSteps())):
        job = RecordedJob(
            str(folder / str(at)), processor, COLUMNS, OUTPUT, Record(share=1.0), pandas=bool(at)
        )
        job.run([("k1", "add", 3), ("k1", "timer", 1), ("k2", "put", 1), ("k1", "yield", 0)], 1000)
        with contextlib.suppress(ProcessorError):
            job.run([("k3", "add", 1), ("k3", "fail", 7)], 1200)
        files += [
            path.read_bytes()
            for path in (folder / str(at) / "recordings").rglob("*")
            if path.is_file()
        ]
    return files


def read_recording(data: bytes) -> Any:
    """Read a recording, each step of it and its settings of frames."""
    from statelog.extensions.testing.replay import row_format_of

    tasks = decode_file(data, where="recordings/a")
    steps = [step for task in tasks for step in steps_of(task)]
    for step in steps:
        row_format_of(step)
    return repr(
        [
            (step.key, python_rows(step.before), python_rows(step.input), step.calls)
            for step in steps
        ]
    )


# --------------------------------------------------------------------------------- encrypted objects


def encrypted_kind(plain: Sequence[bytes]) -> Kind:
    path = "dstl/a"

    def sealed(data: bytes) -> bytes:
        return b"".join(bytes(piece) for piece in encrypt(KEYS, path, data))

    def read(data: bytes) -> Any:
        store = EncryptedStore(store_with(**{path: data}), KEYS)
        whole = bytes(store.get(path))
        for start, length in ((0, 10), (len(whole) // 2, 70_000)):
            store.get_range(path, start, length)
        return kinds.read_segment(whole)

    def forge(rng: random.Random, data: bytes) -> bytes:
        content = bytes(EncryptedStore(store_with(**{path: data}), KEYS).get(path))
        return sealed(rng.choice((kinds.forged_payload, kinds.forged_section))(rng, content))

    return Kind("encrypted object", [sealed(data) for data in plain], read, (forge,), equal)


# ---------------------------------------------------------------------------------- whole locations


def location_kind(
    name: str, history: History, prefix: str, forgeries: Sequence[kinds.Mutate]
) -> Kind:
    """
    Return the kind of one object in a location, read by the readers of state and by `verify`.

    Damage may be reported of each checkpoint; a checkpoint that is read has the right state.
    """
    path = sorted(
        (path for path in history.store.objects if path.startswith(prefix)),
        key=lambda path: (len(path), path),
    )[-1]

    def read(data: bytes) -> Any:
        store = DictStore()
        store.objects = {**history.store.objects, path: (data, store.now)}
        list(verify_location(store))
        states: dict[int, Any] = {}
        refused: StatelogError | None = None
        with LocationState(store) as state:
            for checkpoint in state.checkpoints():
                try:
                    states[checkpoint.checkpoint_id] = _state(state, checkpoint.checkpoint_id)
                except StatelogError as error:
                    refused = error
        if refused is not None and not states:
            raise refused
        return states

    def same(expected: Any, answer: Any) -> bool:
        return all(expected.get(number) == value for number, value in answer.items())

    return Kind(name, [history.store.objects[path][0]], read, forgeries, same, weight=0.1)


def _state(state: LocationState, checkpoint_id: int) -> str:
    names = [variable.name for variable in state.variables(checkpoint_id) if variable.name in NAMES]
    tables = [python_rows(state.table(name, checkpoint_id)) for name in names]
    cells = [state.get(name, key_of(5), checkpoint_id) for name in names]
    return repr((names, tables, cells))


def read_staged(data: bytes) -> Any:
    return repr(python_rows(from_ipc(data)))


def read_side_output(data: bytes) -> Any:
    entry = Attachment(
        kind="side_output", name="late", operator="op", oldest=1, newest=1, path="output/a",
        size=len(data), crc=checksum([data]), count=1, at_ms=0,
    )  # fmt: skip
    return repr(python_rows(read_side_rows(store_with(**{"output/a": data}), entry)))


def read_broadcast_table(data: bytes) -> Any:
    entry = Attachment(
        kind="broadcast", name="rules", oldest=1, newest=1, path="broadcasts/a", size=len(data),
        crc=checksum([data]), count=1, at_ms=0,
    )  # fmt: skip
    return repr(python_rows(read_broadcast(store_with(**{"broadcasts/a": data}), entry)))


def _compressed_or_not(batch: pa.RecordBatch) -> list[bytes]:
    return [write_stream([batch, batch], batch.schema), stream_of(pa.Table.from_batches([batch]))]


def side_output_streams() -> list[bytes]:
    """Return the stored rows of a side output, compressed or not."""
    batch = pa.record_batch(
        {
            "checkpoint_id": [1, 1, 2], "batch_id": [0, 0, 1], "k": ["a", None, "c"],
            "n": [1.5, 2.0, 3.0],
        }
    )  # fmt: skip
    return _compressed_or_not(batch)


def staged_streams() -> list[bytes]:
    """Return the Arrow streams that tasks stage, compressed or not, with nested columns."""
    batch = pa.record_batch(
        {
            "t": pa.array(["a", None, "ccc"] * 9),
            "l": pa.array([[1, 2], [], None] * 9, pa.list_(pa.int32())),
            "m": pa.array(
                [[("k", {"x": 1.5})]] * 27, pa.map_(pa.string(), pa.struct([("x", pa.float64())]))
            ),
            "d": pa.array([1] * 27, pa.decimal128(20, 2)),
            "b": pa.array([b"\x00", b"", None] * 9),
        }
    )
    return _compressed_or_not(batch)


# ------------------------------------------------------------------------------------- all of them


def all_kinds(folder: Path) -> list[Kind]:
    """Return every kind of file that statelog reads from storage."""
    history = History("fuzz 3", DictStore(), retained=3)
    history.run(9)
    codec = OperatorCodec(history.model.schema)
    job = StoredJob("fuzz", folder / "job")
    job.run(3)
    claim = bytes(history.store.get(PATHS.metadata(0)))
    metadata = [data for data in objects_of(history.store, "chk-") if data != claim]
    snapshots = objects_of(history.store, "taskowned/")
    plain, framed_files = segments(False), segments(True)
    golden = {path.name: path.read_bytes() for path in sorted(GOLDEN.glob("*.dstl"))}
    parent = ParentReference(location="file:///parent", checkpoint_id=3).encoded()
    segment_forgeries = (kinds.forged_payload, kinds.forged_section)
    same = kinds.same_or_foreign
    flink = {
        name: [data for file, data in golden.items() if ("snappy" in file) == (name == "snappy")]
        for name in ("plain", "snappy")
    }
    framed_forgeries = (*segment_forgeries, kinds.forged_frames)
    change_forgeries = (kinds.forged_payload, forged_change, forged_change)
    parent_forgery = kinds.section_forgery(b"PRNT", kinds.json_forgery)
    claim_forgery = kinds.section_forgery(CHECKPOINT_TAG, kinds.record_forgery)
    recorded = recordings(folder / "recorded")
    every_kind = [
        Kind("changelog plain", plain, kinds.read_segment, segment_forgeries, same),
        Kind("changelog snappy", framed_files, kinds.read_segment, framed_forgeries, same),
        *(Kind(f"flink {name}", files, kinds.read_segment) for name, files in flink.items()),
        Kind("metadata", [*metadata, with_staged_rows(metadata[-1])], read_metadata,
             kinds.METADATA_FORGERIES, same),
        Kind("state changes", change_sets(history), changes_reader(codec), change_forgeries, same),
        Kind("snapshot", snapshots, snapshot_reader(codec), (forged_snapshot,)),
        run_file_kind(codec, [parquet_of_history(history, codec)], folder / "local"),
        Kind("staged rows", staged_streams(), read_staged),
        Kind("side output", side_output_streams(), read_side_output),
        Kind("broadcast table", staged_streams(), read_broadcast_table),
        *(tag_kind(name, history, kind, job) for name, kind in TAGS.items()),
        Kind("parent reference", [parent], read_parent, (parent_forgery,)),
        Kind("claim", [claim], read_claim, (claim_forgery, kinds.forged_section), equal),
        Kind("recording", recorded, read_recording, (kinds.recording_forgery,), equal),
        encrypted_kind([*plain, framed_files[-1]]),
        *query_kinds(job),
        location_kind("location metadata", history, "chk-", kinds.METADATA_FORGERIES[:4]),
        location_kind("location snapshot", history, "taskowned/", ()),
    ]  # fmt: skip
    if any(path.startswith("dstl/") for path in history.store.objects):
        every_kind.append(location_kind("location changelog", history, "dstl/", segment_forgeries))
    return every_kind


def parquet_of_history(history: History, codec: OperatorCodec) -> bytes:
    """Return all state of the newest checkpoint as a snapshot."""
    from statelog.state.encoding.snapshot_file import snapshot_table
    from statelog.state.keyed_state import KeyedState

    state = KeyedState(codec)
    base = history.coordinator.latest
    assert base is not None
    state.catch_up(
        ALL_GROUPS, base.checkpoint_id, (), lambda: (history.store, base.for_range(ALL_GROUPS))
    )
    return parquet_of([snapshot_table(codec, state.groups, {}, ALL_GROUPS, now_ms=-1)])
