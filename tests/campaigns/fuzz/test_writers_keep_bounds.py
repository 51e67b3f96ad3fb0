"""What a writer of statelog accepts, its reader accepts: both keep the same bounds."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.campaigns.fuzz.samples import checkpoint, task_recording

from statelog.errors import InvalidOptionsError, UsageError
from statelog.extensions.recordings.format import decode_file, encode_file, encode_recording
from statelog.format import arrow_data, buffers, checkpoint_record, sealed_file
from statelog.format.arrow_data import open_parquet, read_stream_table, write_stream
from statelog.format.checkpoint_record import decode_record, encode_record
from statelog.options import CheckpointOptions
from statelog.state.encoding.snapshot_file import SnapshotWriter

FEW = settings(max_examples=25, deadline=None)


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that small data reach."""
    monkeypatch.setattr(buffers, "ALWAYS_ALLOWED", 1 << 12)
    monkeypatch.setattr(buffers, "ARROW_ALWAYS_ALLOWED", 1 << 12)
    monkeypatch.setattr(buffers, "ARROW_EXPANSION_MAX", 16)
    monkeypatch.setattr(arrow_data, "ARROW_ROWS_ALLOWED", 64)
    monkeypatch.setattr(buffers, "JSON_VALUES_MAX", 1 << 8)
    monkeypatch.setattr(buffers, "DEPTH_MAX", 8)
    for module, name, value in (
        (sealed_file, "RECORDING_BYTES_MAX", 1 << 18),
        (checkpoint_record, "RECORD_BYTES_MAX", 1 << 18),
        (checkpoint_record, "RETAINED_MAX", 50),
        (checkpoint_record, "JSON_VALUES_MAX", 1 << 8),
    ):
        monkeypatch.setattr(module, name, value)


@FEW
@given(
    length=st.integers(0, 1 << 19),
    depth=st.integers(0, 12),
    values=st.integers(0, 600),
    retained=st.integers(0, 60),
    identifier=st.sampled_from([0, buffers.ID_MAX, buffers.ID_MAX + 1]),
)
def test_records_of_checkpoints(
    length: int, depth: int, values: int, retained: int, identifier: int
) -> None:
    nested: Any = 1
    for _ in range(depth):
        nested = {"a": nested}
    record = checkpoint(
        checkpoint_id=identifier,
        retained=tuple(range(retained)),
        properties={"text": "a" * length, "nested": nested, "numbers": list(range(values))},
    )
    try:
        data = encode_record(record)
    except UsageError:
        return
    assert decode_record(data) == record


@FEW
@given(length=st.integers(0, 1 << 19), tasks=st.integers(1, 3))
def test_recordings(length: int, tasks: int) -> None:
    recorded = [task_recording(source="a" * length) for _ in range(tasks)]
    try:
        data = encode_file([encode_recording(task) for task in recorded])
    except UsageError:
        assert length * tasks > 1 << 17
        return
    assert decode_file(data) == recorded


def test_a_recording_that_compresses_well_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    recorded = [task_recording(source="a" * (20 << 20))]
    assert decode_file(encode_file([encode_recording(recorded[0])])) == recorded


@FEW
@given(rows=st.integers(0, 1 << 15), batches=st.integers(1, 3), width=st.integers(1, 3))
def test_staged_rows(rows: int, batches: int, width: int) -> None:
    kinds = (pa.int64(), pa.bool_(), pa.null())
    values = (7, True, None)
    columns = {f"c{at}": pa.array([values[at]] * rows, kinds[at]) for at in range(width)}
    batch = pa.record_batch(columns)
    data = write_stream([batch] * batches, batch.schema)
    assert read_stream_table(data).equals(pa.Table.from_batches([batch] * batches))


@FEW
@given(rows=st.integers(0, 1 << 14), text=st.integers(0, 200), parts=st.integers(1, 3))
def test_snapshots(rows: int, text: int, parts: int) -> None:
    table = pa.table(
        {"key_group": pa.array([3] * rows, pa.int32()), "v": ["a" * text] * rows},
        schema=pa.schema(
            [pa.field("key_group", pa.int32()), pa.field("v", pa.string())],
            {"statelog.schema": "x"},
        ),
    )
    writer = SnapshotWriter(table.schema)
    for _ in range(parts):
        writer.write(table)
    read = open_parquet(writer.finish()).read()
    assert read.equals(pa.concat_tables([table] * parts))
    assert read.schema.metadata == table.schema.metadata


def test_more_retained_checkpoints_than_a_record_holds_are_refused_as_an_option() -> None:
    CheckpointOptions(retained=1 << 16)
    with pytest.raises(InvalidOptionsError, match=r"retained must be .* at most 65,536, not 65537"):
        CheckpointOptions(retained=(1 << 16) + 1)


def test_a_section_of_staged_rows_is_read_as_it_is_written() -> None:
    from statelog.format.checkpoint_metadata import decode_streams, encode_streams

    assert decode_streams(None) == []
    assert decode_streams(encode_streams([b"a", b""])) == [b"a", b""]
    assert msgspec.msgpack.decode(encode_streams([b"a"])) == [b"a"]
