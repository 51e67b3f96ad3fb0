"""A first micro-batch follows on a checkpoint, staged files are read once, and unnamed columns are warned of."""

import logging
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.support.locations.batch_records import one_operator
from tests.support.stores.dict_store import CountingStore

from statelog.checkpoint.batch_record import BatchRecord
from statelog.core.source_position import NOTHING_READ, SourceLog
from statelog.errors import CheckpointError, FencedError
from statelog.format.arrow_data import write_stream
from statelog.format.buffers import checksum
from statelog.model import FileStateHandle, KeyGroupRange
from statelog.spark.driver import delivery as staged_rows
from statelog.spark.driver.batch_times import BatchTimes
from statelog.spark.driver.operator_run import UnnamedOutput
from statelog.spark.driver.restart import FirstBatch, check_state_is_there, is_committed
from statelog.spark.rows.interface import UnnamedColumns
from statelog.spark.worker.protocol import TaskAck, TaskOutput, TaskPlace

MISSPELT = UnnamedColumns(("customer", "total"), ("cust", "totl"))


def ack(rows: int, unnamed: UnnamedColumns | None = None) -> TaskAck:
    return TaskAck(
        TaskPlace(0, KeyGroupRange(0, 127)),
        output=TaskOutput(None, unnamed),
        figures={"output_rows": rows},
    )


def warnings_of(
    caplog: pytest.LogCaptureFixture, *batches: list[TaskAck], name: str = "Totals"
) -> list[str]:
    unnamed = UnnamedOutput(name)
    with caplog.at_level(logging.WARNING, logger="statelog.spark"):
        for batch_id, acks in enumerate(batches):
            unnamed.committed(batch_id, acks)
    return [record.getMessage() for record in caplog.records]


def test_misspelt_columns_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    warned = warnings_of(caplog, [ack(0)], [ack(2, MISSPELT), ack(1, MISSPELT)], [ack(2, MISSPELT)])
    assert warned == [
        "no output row of Totals in batch 1 sets the columns 'customer', 'total': they are null. "
        "The rows contain fields that are not columns: 'cust' (did you mean 'customer'?), 'totl' (did "
        "you mean 'total'?)"
    ]


def test_a_column_that_another_task_names_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    other = UnnamedColumns(("total",), ("Totals",))
    assert warnings_of(caplog, [ack(1, MISSPELT), ack(1, other)]) == [
        "no output row of Totals in batch 0 sets the columns 'total': they are null. The rows contain "
        "fields that are not columns: 'Totals' (did you mean 'total'?), 'cust', 'totl' (did you mean "
        "'total'?)"
    ]


def test_no_warning_once_a_task_has_named_all_columns_or_without_rows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with_all_columns, without_rows = ack(1), ack(0)
    assert not warnings_of(caplog, [ack(1, MISSPELT), with_all_columns], [ack(1, MISSPELT)])
    assert not warnings_of(caplog, [without_rows, without_rows], [])


def test_a_column_that_rows_leave_out_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(caplog, [ack(3, UnnamedColumns(("note",), ()))]) == [
        "no output row of Totals in batch 0 sets the columns 'note': they are null"
    ]


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


LOG = SourceLog(source=0, folder="0", after=3, upto=4, digest="files")
BASE: Any = SimpleNamespace(checkpoint_id=7)


@dataclass
class Sources:
    digest: str = "files"
    planned: tuple[int, ...] = ()
    checkpoint_location: str = "/query"

    def read_again(self, logs: Any) -> list[SourceLog]:
        return [msgspec.structs.replace(log, digest=self.digest) for log in logs]

    def is_planned(self, batch_id: int) -> bool:
        return batch_id in self.planned


def record(**changes: Any) -> BatchRecord:
    values: dict[str, Any] = {
        "query_id": "q", "batch_id": 4, "position": "e4", "position_before": "e3",
        "source_logs": [LOG], **changes,
    }  # fmt: skip
    return one_operator(**values)


def follows(
    batch_id: int, before: str | None, position: str | None = "new", *, digest: str = "files",
    planned: tuple[int, ...] = (), query_id: str = "q", free: bool = False,
    changes: dict[str, Any] | None = None,
) -> bool:  # fmt: skip
    times = BatchTimes(position=position, position_before=before)
    first = FirstBatch(query_id, batch_id, times, Sources(digest, planned))
    return is_committed(
        first, BASE, record(**(changes or {})), "/state", free=free,
        newest_claim=lambda: "chk-9/_metadata, claimed by 'query-host-1'",
    )  # fmt: skip


def refused(message: str, *arguments: Any, **named: Any) -> None:
    with pytest.raises(CheckpointError, match=message) as raised:
        follows(*arguments, **named)
    assert ("gap", 7) == (raised.value.reason, raised.value.checkpoint_id)
    assert "`statelog rewind /query --state-location /state` lists" in str(raised.value)
    assert "new checkpointLocation and adopt=True" in str(raised.value)


def test_a_batch_is_committed_only_if_it_covers_the_same_input() -> None:
    assert follows(4, "e3", "e4")
    refused("planned batch 4 again", 4, "e3", "other")
    refused("planned batch 4 again", 4, "other", "e4")
    refused("planned batch 4 again", 4, "e3", "e4", digest="other files")


def test_the_next_batch_begins_where_the_committed_one_ended() -> None:
    assert not follows(5, "e4")
    assert not follows(9, "e4")  # batches 5 to 8 read nothing
    refused("planned batch 4 again", 5, "other")
    refused("planned batch 4 again", 5, "e4", digest="other files")
    refused("is at batch 6, but the state .* after batch 4", 6, "other")
    refused("is at batch 6", 6, None)
    refused("is at batch 3", 3, "e4")


def test_another_driver_that_went_on_is_named_before_lost_files() -> None:
    with pytest.raises(FencedError, match="a second driver is running this query") as raised:
        follows(3, "e2", planned=(3, 4))
    assert "chk-9/_metadata, claimed by 'query-host-1'" in str(raised.value)
    assert "a restart continues the job" in str(raised.value)
    assert not {"rewind", "adopt"} & set(str(raised.value).split())
    refused("Files of the checkpointLocation .* were removed", 3, "e2", planned=(3,))
    assert not follows(3, "e2", planned=(3, 4), free=True)  # the caller asked for this checkpoint


def test_unknown_positions_are_not_compared() -> None:
    old = {"changes": {"position": None, "position_before": None, "source_logs": None}}
    last = {"changes": {"position_before": None, "source_logs": None}}
    assert follows(4, "e3", "e4", **old)
    assert not follows(5, "e4", **old)
    refused("is at batch 6", 6, "e4", **old)
    assert follows(4, "e3", "e4", **last)
    refused("planned batch 4 again", 4, "e3", "x", **last)
    refused("planned batch 4 again", 5, "x", **last)


def test_after_an_adoption_or_a_restore_any_batch_may_follow() -> None:
    assert not follows(0, NOTHING_READ, query_id="heir")
    assert not follows(9, "other", free=True)
    assert not follows(2, "other", free=True)
    assert follows(4, "e3", "e4", free=True)
    assert not follows(4, "e3", "other", free=True)  # the number of a batch with other input


def test_a_query_without_a_checkpoint_is_at_its_beginning() -> None:
    for batch_id, before in ((0, None), (0, NOTHING_READ), (3, NOTHING_READ)):
        first = FirstBatch("q", batch_id, BatchTimes(position_before=before))
        check_state_is_there(first, "/state")
    with pytest.raises(CheckpointError, match="its state is missing"):
        check_state_is_there(FirstBatch("q", 1, BatchTimes(position_before="e")), "/state")
