"""Staged rows in files: read once each, and verified as everything else; without Spark running."""

import msgspec
import pyarrow as pa
import pytest
from tests.support.stores.dict_store import CountingStore

from statelog.errors import CheckpointError
from statelog.format.arrow_data import write_stream
from statelog.format.buffers import checksum
from statelog.model import FileStateHandle
from statelog.spark.driver import delivery as staged_rows

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> CountingStore:
    store = CountingStore()
    monkeypatch.setattr(staged_rows, "open_location", lambda *_, **__: store)
    return store


def put(store: CountingStore, path: str, numbers: list[int]) -> str:
    """Write a file of staged rows; return its handle as a task of the delivery gets it."""
    data = write_stream([pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)], SCHEMA)
    store.put(path, data)
    handle = FileStateHandle(path, len(data), checksum([data]))
    return msgspec.json.encode(handle.to_json()).decode()


def delivered(*handles: str) -> list[int]:
    batches = [pa.record_batch([pa.array(handles, pa.string())], names=["handle"])]
    read_batches = staged_rows._read_rows("/state", {}, SCHEMA, "the output", batches)
    return [row["n"] for batch in read_batches for row in batch.to_pylist()]


def test_each_file_is_read_once(store: CountingStore) -> None:
    handles = put(store, "output/a", [1, 2]), put(store, "output/b", [3])
    assert [1, 2, 3] == delivered(*handles)
    assert {"output/a": 1, "output/b": 1} == store.reads


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"\x00" + data[1:]])
def test_damage_is_reported(store: CountingStore, damage: object) -> None:
    handle = put(store, "output/a", [1, 2])
    data, written_at = store.objects["output/a"]
    store.objects["output/a"] = damage(data), written_at  # type: ignore[operator]
    with pytest.raises(CheckpointError, match="damaged staged rows output/a in dict://") as raised:
        delivered(handle)
    assert "damaged" == raised.value.reason
    del store.objects["output/a"]
    with pytest.raises(CheckpointError, match="cannot be read: no output/a"):
        delivered(handle)
