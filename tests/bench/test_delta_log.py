"""The experiment with Delta: commits and deletion vectors that an independent reader reads."""

import json
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from bench.delta_log import CommitTakenError, DeltaLog, bitmap_array, roaring, z85
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given
from hypothesis import strategies as st

from statelog.store import open_store

SCHEMA = pa.schema([("key", pa.int64()), ("n", pa.int64())])


def rows_of(folder: Path) -> dict[int, int]:
    """Return the table as delta-rs reads it."""
    found = QueryBuilder().register("t", DeltaTable(str(folder))).execute("select key, n from t")
    table = pa.table(found.read_all())
    pairs = list(zip(table["key"].to_pylist(), table["n"].to_pylist(), strict=True))
    assert len(pairs) == len(dict(pairs)), "a key has two rows"
    return dict(pairs)


def table_of(rows: dict[int, int]) -> pa.Table:
    return pa.table({"key": [*rows], "n": [*rows.values()]}, schema=SCHEMA)


def unroaring(data: bytes) -> list[int]:
    """Read Roaring's portable format back, without the code that writes it."""
    cookie, count = struct.unpack_from("<II", data)
    assert 12346 == cookie
    found = []
    for at in range(count):
        key, less_one = struct.unpack_from("<HH", data, 8 + 4 * at)
        (offset,) = struct.unpack_from("<I", data, 8 + 4 * count + 4 * at)
        if less_one < 4096:
            lows = struct.unpack_from(f"<{less_one + 1}H", data, offset)
        else:
            bits = int.from_bytes(data[offset : offset + 8192], "little")
            lows = tuple(bit for bit in range(65536) if bits >> bit & 1)
        found += [(key << 16) + low for low in lows]
    return found


@given(st.sets(st.integers(0, 2**32 - 1) | st.integers(0, 70_000), min_size=1))
def test_bitmaps_are_portable(positions: set[int]) -> None:
    ordered = sorted(positions)
    assert ordered == unroaring(roaring(np.array(ordered, np.uint32)))


def test_a_dense_container_is_a_bitmap() -> None:
    dense = list(range(0, 65536, 3))
    data = roaring(np.array(dense, np.uint32))
    assert dense == unroaring(data)
    assert 8192 < len(data) < 8220


def test_the_vector_has_the_bitmap_of_the_example_in_the_protocol() -> None:
    # Its example 3 begins with an older header; the bitmap of 3, 4, 7, 11, 18 and 29 is the same.
    example = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    data = bitmap_array(np.array([3, 4, 7, 11, 18, 29]))
    assert z85(roaring(np.array([3, 4, 7, 11, 18, 29], np.uint32))) == example[15:]
    assert struct.pack("<IQI", 1681511377, 1, 0) == data[:16]


def test_positions_beyond_32_bits_have_a_bitmap_of_their_own() -> None:
    data = bitmap_array(np.array([5, (1 << 32) + 7]))
    assert (1681511377, 2) == struct.unpack_from("<IQ", data)
    first = roaring(np.array([5], np.uint32))
    assert data[16 : 16 + len(first)] == first
    assert (1,) == struct.unpack_from("<I", data, 16 + len(first))


@pytest.mark.parametrize("seed", range(5))
def test_delta_rs_reads_what_random_upserts_and_deletes_left(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    log = DeltaLog(open_store(str(tmp_path)), "test")
    log.create(SCHEMA)
    model: dict[int, int] = {}
    places: dict[int, tuple[int, int]] = {}
    for batch in range(8):
        changed = rng.sample(range(3000), rng.choice([0, 5, 400, 2500]))
        dropped = {key for key in changed if rng.random() < 0.3}
        upserts = {key: batch for key in changed if key not in dropped}
        deleted: dict[int, list[int]] = {}
        for key in changed:
            if key in places:
                file, row = places.pop(key)
                deleted.setdefault(file, []).append(row)
        positions = {file: np.array(sorted(rows)) for file, rows in deleted.items()}
        number = log.commit(table_of(upserts), positions, batch)
        places |= {key: (number, row) for row, key in enumerate(upserts)}
        model = {key: n for key, n in model.items() if key not in dropped} | upserts
        assert model == rows_of(tmp_path)
    assert 7 == DeltaTable(str(tmp_path)).transaction_version("test")


def test_a_file_without_live_rows_is_removed(tmp_path: Path) -> None:
    log = DeltaLog(open_store(str(tmp_path)), "test")
    log.create(SCHEMA)
    first = log.commit(table_of({1: 1, 2: 2}), {})
    second = log.commit(table_of({1: 3, 2: 4}), {first: np.array([0, 1])})
    assert [second] == [*log.files]
    assert {1: 3, 2: 4} == rows_of(tmp_path)


def test_vectors_in_a_file_have_size_and_checksum(tmp_path: Path) -> None:
    log = DeltaLog(open_store(str(tmp_path)), "test")
    log.create(SCHEMA)
    first = log.commit(table_of(dict.fromkeys(range(2000), 0)), {})
    log.commit(table_of({}), {first: np.arange(0, 2000, 2)})
    vector = log.files[first].vector
    assert vector is not None and "u" == vector["storageType"]
    (path,) = tmp_path.glob("deletion_vector_*.bin")
    data = path.read_bytes()
    size = vector["sizeInBytes"]
    assert (1, size) == (data[0], *struct.unpack_from(">I", data, vector["offset"]))
    body = data[5 : 5 + size]
    assert (zlib.crc32(body),) == struct.unpack_from(">I", data, 5 + size)
    assert 1000 == len(rows_of(tmp_path))


def test_a_version_that_another_writer_took_is_not_overwritten(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    log = DeltaLog(store, "test")
    log.create(SCHEMA)
    log.commit(table_of({1: 1}), {})
    store.put_if_absent(f"_delta_log/{2:020}.json", json.dumps({"commitInfo": {}}).encode())
    with pytest.raises(CommitTakenError, match=r"version 2 .* is taken"):
        log.commit(table_of({2: 2}), {})
    assert 1 == log.version
    assert {1: 1} == rows_of(tmp_path)


def test_a_row_is_deleted_once(tmp_path: Path) -> None:
    log = DeltaLog(open_store(str(tmp_path)), "test")
    log.create(SCHEMA)
    first = log.commit(table_of({1: 1, 2: 2}), {})
    log.commit(table_of({}), {first: np.array([0])})
    with pytest.raises(Exception, match="deleted twice"):
        log.commit(table_of({}), {first: np.array([0, 1])})


def test_a_compaction_keeps_the_rows(tmp_path: Path) -> None:
    log = DeltaLog(open_store(str(tmp_path)), "test")
    log.create(SCHEMA)
    first = log.commit(table_of({1: 1, 2: 2}), {})
    second = log.commit(table_of({1: 3}), {first: np.array([0])})
    new = log.replace([table_of({2: 2, 1: 3})], [first, second])
    assert log.files == new and 1 == len(new)
    assert {1: 3, 2: 2} == rows_of(tmp_path)
