"""What declares more than it holds is refused before memory is allocated for it."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from tests.campaigns.fuzz.samples import SCHEMA, checkpoint, stream_of, task_recording
from tests.support.processes.script import run_script
from tests.support.stores.query_files import Files

from statelog.checkpoint.query_files import files_upto
from statelog.errors import CheckpointError, CorruptionError
from statelog.extensions.recordings.format import decode_file, from_stream
from statelog.extensions.recordings.step import steps_of
from statelog.format import buffers
from statelog.format.arrow_data import read_batch, read_stream_table
from statelog.format.checkpoint_record import RECORD_VERSION, decode_record, encode_record
from statelog.format.sealed_file import framed
from statelog.state.schema import OperatorStateSchema


def stored_record(**changes: object) -> bytes:
    body = encode_record(checkpoint())
    raw = buffers.decompress_zstd(body[8:], 1 << 20)
    fields = {**msgspec.json.decode(raw), **changes}
    return compressed_record(msgspec.json.encode(fields))


def compressed_record(raw: bytes) -> bytes:
    body = pa.Codec("zstd").compress(raw, asbytes=True)
    return struct.pack(">HBBI", RECORD_VERSION, 1, 0, len(raw)) + body


def forged_offsets(data: bytes) -> bytes:
    """Return Arrow bytes whose middle text begins far outside of its buffer."""
    good = struct.pack("<4i", 0, 3, 6, 9)
    assert good in data
    return data.replace(good, struct.pack("<4i", 0, 2_000_000_000, 6, 9))


TEXTS = pa.table({"t": pa.array(["abc", "def", "ghi"])})


def nested(depth: int) -> msgspec.Raw:
    return msgspec.Raw(b'{"a":' + b"[" * depth + b"]" * depth + b"}")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        *(({"max_parallelism": n}, "key groups") for n in (2**31, 2**62, 0, -1, 32769)),
        ({"retained": list(range(10**6))}, "it retains 1000000 checkpoints"),
        ({"id": 2**63}, "above"),
        *(({"properties": nested(depth)}, "nested") for depth in (100, 10**6)),
    ],
)
def test_a_record_of_impossible_values_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(CorruptionError, match=reason):
        decode_record(stored_record(**changes), where="chk-4/_metadata")


def test_a_record_that_expands_a_thousand_times_is_refused() -> None:
    data = compressed_record(b'{"properties":{"a":[' + b"0," * (20 << 20) + b"0]}}")
    assert len(data) < 100_000
    with pytest.raises(CorruptionError, match="claims"):
        decode_record(data, where="chk-4/_metadata")


def test_json_of_too_many_values_is_refused() -> None:
    raw = b"[" + b"[]," * buffers.JSON_VALUES_MAX + b"0]"
    with pytest.raises(msgspec.DecodeError, match="values"):
        buffers.decode_json(raw, msgspec.json.Decoder())


def test_a_record_that_compresses_well_is_written_so_that_it_is_read() -> None:
    record = checkpoint(properties={"text": "a" * (20 << 20)})
    assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\x91\x81\xa1x" + b"\x91" * 200_000, "damaged recording recordings/1"),
        (b"\x91\x81\xdb\xff\xff\xff\xff", "damaged recording recordings/1"),
        (b"\x91\x81\xa2\xff\xff\x01", "damaged recording recordings/1"),
        (bytes(32 << 20), "claims"),
    ],
    ids=["nested", "too long", "no text", "expands"],
)
def test_a_recording_of_impossible_content_is_refused(raw: bytes, reason: str) -> None:
    body = pa.Codec("zstd").compress(raw, asbytes=True)
    with pytest.raises(CorruptionError, match=reason):
        decode_file(framed(body, len(raw)), where="recordings/1")


def test_forged_offsets_in_arrow_are_refused() -> None:
    with pytest.raises(CorruptionError):
        from_stream(forged_offsets(stream_of(TEXTS)))
    message = forged_offsets(TEXTS.to_batches()[0].serialize().to_pybytes())
    with pytest.raises(pa.ArrowInvalid):
        read_batch(pa.py_buffer(message), TEXTS.schema)


@pytest.mark.parametrize("length", [0, 1, 4, 2**30, 2**31 - 1, 2**31, 2**32 - 8, 2**32 - 1])
def test_a_message_with_a_forged_length_is_refused(length: int) -> None:
    """Arrow takes the length 0 for the end of a stream, which is no error of Arrow's."""
    message = TEXTS.to_batches()[0].serialize().to_pybytes()
    forged = message[:4] + struct.pack("<I", length) + message[8:]
    with pytest.raises((pa.ArrowException, OSError)):
        read_batch(pa.py_buffer(forged), TEXTS.schema)


def test_a_compressed_change_is_refused() -> None:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    rows = pa.record_batch({"n": pa.array([0] * 1000)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_batch(rows)
    messages = list(pa.ipc.MessageReader.open_stream(pa.BufferReader(sink.getvalue())))
    with pytest.raises(pa.ArrowInvalid, match="compressed"):
        read_batch(messages[1].serialize(), rows.schema)


CHILD = """
import struct
import pyarrow as pa
from statelog.format.arrow_data import read_stream_table
from tests.campaigns.fuzz.samples import limit_memory, stream_of
data = stream_of(pa.table({"n": pa.array([0] * 100_000)}), "zstd")
good = struct.pack("<q", 800_000)
assert good in data
data = data.replace(good, struct.pack("<q", 12 << 30))
limit_memory()
try:
    read_stream_table(data)
except pa.ArrowInvalid as error:
    print("refused:", error)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_a_compressed_buffer_of_twelve_gigabytes_allocates_nothing() -> None:
    assert "declare" in run_script(CHILD)


def test_a_type_that_brings_a_pickle_is_not_unpickled(tmp_path: Path) -> None:
    """Old versions of PyArrow made an object of the pickle in such a type when they read a schema."""
    trap = tmp_path / "ran"
    code = f"cos\nmkdir\n(V{trap}\ntR.".encode()
    names = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": code}
    field = pa.field("t", pa.string(), metadata=names)
    table = pa.table({"t": TEXTS["t"]}, schema=pa.schema([field]))
    assert read_stream_table(stream_of(table)).num_rows == 3
    assert from_stream(stream_of(table)).num_rows == 3
    assert not trap.exists()
    pickle.loads(code)
    assert trap.exists(), "the pickle is one that acts"


def test_compressed_streams_and_dictionaries_are_read() -> None:
    table = pa.table({"t": pa.array(["x", "y", "x"] * 500).dictionary_encode(), "n": range(1500)})
    for compression in (None, "zstd", "lz4"):
        assert read_stream_table(stream_of(table, compression)).equals(table)


@pytest.mark.parametrize(
    ("name", "value"),
    [("generation", "1"), ("generation", None), ("operator_id", 3), ("states", 7)],
)
def test_a_schema_with_fields_of_other_types_is_refused(name: str, value: object) -> None:
    with pytest.raises(CorruptionError, match="not a state schema"):
        OperatorStateSchema.from_json({**SCHEMA.to_json(), name: value})


@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b'{"a":' + b"[" * 10**5])
def test_bytes_that_are_no_schema_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="schema"):
        OperatorStateSchema.from_bytes(data)


def test_calls_that_yielded_more_rows_than_are_stored_are_refused() -> None:
    task = task_recording(calls=[(0, "handleInputRows", -1, 2**31)])
    with pytest.raises(CorruptionError, match="yielded 2147483648 rows, but 1 are stored"):
        list(steps_of(task))


def test_a_source_log_with_entries_up_to_a_forged_number_ends_at_the_first_missing_one() -> None:
    line = b'{"path":"file:///a","timestamp":1,"batchId":0}'
    log = Files(**{f"sources__0__{2**62 + 9}.compact": b"v1\n" + line})
    with pytest.raises(CheckpointError, match="does not contain entry 1"):
        files_upto(log, "0", 2**62)
