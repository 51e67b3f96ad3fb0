"""Delta's log and deletion vectors, next to libraries that read them."""

from __future__ import annotations

import json
import os
import struct
import uuid
import zlib

import deltalake
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from statelog.errors import CorruptionError, UsageError
from statelog.format import deletion_vectors, delta_log
from statelog.format.delta_log import Action, Add, Format, Metadata, Protocol, Transaction, Vector

ROWS = st.builds(
    lambda scattered, start, length: sorted({*scattered, *range(start, start + length)}),
    st.sets(st.integers(0, 2**32 - 1), max_size=30),
    st.sampled_from([0, 7, 65_530, 10**6]),
    st.sampled_from([0, 1, 4095, 4096, 4097, 70_000]),
)


@given(st.lists(ROWS.filter(bool), min_size=1, max_size=3))
def test_vectors_are_read_by_the_library_for_roaring_bitmaps(vectors: list[list[int]]) -> None:
    data, places = deletion_vectors.vector_file([np.array(rows, np.int64) for rows in vectors])
    assert 1 == data[0]
    end = 1
    for rows, (offset, size) in zip(vectors, places, strict=True):
        assert (end, (size,)) == (offset, struct.unpack_from(">I", data, offset))
        vector = data[offset + 4 : offset + 4 + size]
        assert (1681511377,) == struct.unpack_from("<I", vector)
        assert rows == list(BitMap64.deserialize(vector[4:]))
        assert (zlib.crc32(vector),) == struct.unpack_from(">I", data, offset + 4 + size)
        end = offset + size + 8
    assert len(data) == end


def test_a_reference_names_a_file_by_its_id() -> None:
    for number in (bytes(16), b"\xff" * 16, *(os.urandom(16) for _ in range(50))):
        name = deletion_vectors.vector_file_name(number)
        assert f"deletion_vector_{uuid.UUID(bytes=number)}.bin" == name
        reference = deletion_vectors.vector_reference("_folder", number)
        assert reference.startswith("_folder") and 27 == len(reference)
        assert name == deletion_vectors.referenced_name(reference)
    # The example in the protocol of Delta.
    assert "ab^-aqEH.-t@S}K{vb[*k^" == deletion_vectors.vector_reference(
        "ab", uuid.UUID("d2c639aa-8816-431a-aaf6-d3fe2512ff61").bytes
    )
    for text in ("", "short", "€" * 20, "_folder" + '"' * 20, "_folder" + "#" * 20):
        with pytest.raises(ValueError):
            deletion_vectors.referenced_name(text)


def actions() -> list[Action]:
    features = ("deletionVectors",)
    vector = Vector(
        storage_type="u", path_or_inline_dv="x", offset=1, size_in_bytes=40, cardinality=2
    )
    files = [
        Add(path=f"{at}", partition_values={}, size=at, modification_time=5, data_change=True,
            stats='{"numRecords":3}', deletion_vector=vector if at else None)
        for at in range(2)
    ]  # fmt: skip
    metadata = Metadata(
        id="id",
        description="text",
        format=Format(provider="parquet", options={}),
        schema_string="{}",
        partition_columns=(),
        configuration={"a": "", "statelog.checkpoints": '{"7":1}', "statelog.tags": '{"a":1}'},
        created_time=7,
    )
    protocol = Protocol(
        min_reader_version=3,
        min_writer_version=7,
        reader_features=features,
        writer_features=features,
    )
    transaction = Transaction(app_id="statelog", version=9)
    return [
        Action(protocol=protocol),
        Action(meta_data=metadata),
        Action(txn=transaction),
        *(Action(add=file) for file in files),
    ]


def test_actions_are_read_as_they_were_written() -> None:
    info = Action(commit_info={"operation": "WRITE", "x": 1})
    version = delta_log.encode_version([info, *actions()])
    assert [info, *actions()] == delta_log.decode_version(version, "path")
    first = json.loads(version.splitlines()[1])
    assert {"protocol"} == first.keys(), "an action has one name"
    checkpoint = delta_log.encode_checkpoint(actions())
    assert actions() == delta_log.decode_checkpoint(checkpoint, "path")


@given(st.binary(max_size=40), st.integers(0, 5000))
def test_damaged_files_are_reported(damage: bytes, at: int) -> None:
    for data, decode in (
        (delta_log.encode_version(actions()), delta_log.decode_version),
        (delta_log.encode_checkpoint(actions()), delta_log.decode_checkpoint),
    ):
        place = at % len(data)
        damaged = data[:place] + damage + data[place + len(damage) :]
        try:
            decode(damaged, "path")
        except CorruptionError as error:
            assert "path" in str(error)


def test_columns_have_the_types_that_delta_rs_gives_them() -> None:
    columns = pa.schema(
        {
            "key.a b": pa.string(),
            "$timers": pa.list_(pa.int64()),
            "bytes": pa.large_binary(),
            "small": pa.struct({"x": pa.int8(), "y": pa.int16(), "z": pa.int32()}),
            "floats": pa.struct({"x": pa.float32(), "y": pa.float64()}),
            "map": pa.list_(pa.struct({"key": pa.struct({"d": pa.date32()}), "value": pa.bool_()})),
            "real map": pa.map_(pa.string(), pa.decimal128(10, 2)),
            "times": pa.struct({"x": pa.timestamp("us"), "y": pa.timestamp("us", "UTC")}),
        }
    )
    expected = json.loads(deltalake.Schema.from_arrow(columns).to_json())
    text = delta_log.delta_schema(columns)
    assert json.loads(text) == all_nullable(expected)
    assert delta_log.has_local_times(text)
    assert not delta_log.has_local_times(delta_log.delta_schema(pa.schema({"a": pa.int64()})))


def all_nullable(schema: object) -> object:
    """Return the schema with every field nullable."""
    if isinstance(schema, dict):
        changed = {"nullable", "containsNull", "valueContainsNull"} & schema.keys()
        return {
            name: True if name in changed else all_nullable(part) for name, part in schema.items()
        }
    return [all_nullable(part) for part in schema] if isinstance(schema, list) else schema


def test_names_that_differ_in_case_only_are_refused() -> None:
    kind = pa.struct({"x": pa.int64(), "y": pa.int64(), "X": pa.int64()})
    with pytest.raises(UsageError, match=r"a\.x and a\.X differ .* --state"):
        delta_log.delta_schema(pa.schema({"a": kind, "x": pa.int64()}))


@pytest.mark.parametrize(
    "kind", [pa.duration("us"), pa.uint64(), pa.timestamp("ns"), pa.time64("us"), pa.null()]
)
def test_columns_that_delta_lacks_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(UsageError, match=r"a\.b\.x has the type .* --state"):
        delta_log.delta_schema(pa.schema({"a.b": pa.list_(pa.struct({"x": kind}))}))
