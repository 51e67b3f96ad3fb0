"""The largest key groups and keys are found, and said where one of them dominates."""

import time
from collections.abc import Iterator

import pyarrow as pa

from statelog.model import KeyGroupRange
from statelog.spark.driver.batch_reports import (
    DOMINATING_SHARE,
    largest_groups,
    largest_keys,
    skew_of,
)
from statelog.spark.worker.protocol import TaskAck, TaskPlace
from statelog.spark.worker.task_input import RowCounter

RANGE = KeyGroupRange(10, 19)


def batch(rows: list[tuple[int, str]]) -> pa.RecordBatch:
    groups = pa.array([key_group for key_group, _ in rows], pa.int32())
    keys = pa.array([key for _, key in rows])
    return pa.RecordBatch.from_arrays([groups, keys, keys], names=["kg", "key", "other"])


def counted(*batches: pa.RecordBatch) -> TaskAck:
    counter = RowCounter(RANGE, (1,))
    assert list(batches) == list(counter.through(batches))
    rows = sum(batch.num_rows for batch in batches)
    return TaskAck(
        TaskPlace(0, RANGE),
        figures={"rows": rows},
        top_groups=counter.groups(),
        top_keys=counter.keys(),
    )


def test_a_key_with_most_of_the_rows_is_named() -> None:
    rows = [(13, "hot")] * 900 + [(13, "warm")] * 100 + [(10 + i % 10, f"k{i}") for i in range(500)]
    ack = counted(batch(rows), batch(rows))
    groups, keys = largest_groups([ack]), largest_keys([ack])
    assert (13, 2100) == (groups[0]["key_group"], groups[0]["rows"])
    assert {"key": "('hot',)", "key_group": 13, "rows": 1800, "share": 0.6} == keys[0]
    assert 200 == keys[1]["rows"]
    assert "key ('hot',) receives 60% of the rows" in skew_of(groups, keys).warning


def test_a_key_group_of_many_keys_is_named_as_such() -> None:
    ack = counted(batch([(13, f"k{i}") for i in range(2000)] + [(14, "x")] * 10))
    assert skew_of(largest_groups([ack]), largest_keys([ack])).warning.startswith(
        "key group 13 receives 100%"
    )


def test_an_even_load_gives_no_warning() -> None:
    ack = counted(batch([(10 + i % 10, f"k{i}") for i in range(5000)]))
    place = TaskPlace(1, KeyGroupRange(20, 29))
    other = TaskAck(place, figures={"rows": 600}, top_groups=[(25, 600)])
    groups = largest_groups([ack, other])
    assert [600, 500, 500] == [group["rows"] for group in groups]
    assert [] == largest_keys([ack, other])
    assert "" == skew_of(groups, []).warning


def test_few_rows_give_no_warning() -> None:
    ack = counted(batch([(13, "hot")] * 50), batch([]))
    assert "" == skew_of(largest_groups([ack]), largest_keys([ack])).warning
    assert [] == largest_groups([counted()])


def test_keys_of_nested_types_do_no_harm() -> None:
    nested = pa.array([{"a": [1]}] * 2000)
    columns = [pa.array([13] * 2000, pa.int32()), nested]
    counter = RowCounter(RANGE, (1,))
    list(counter.through([pa.RecordBatch.from_arrays(columns, names=["kg", "key"])]))
    assert [(13, 2000)] == counter.groups()


def test_only_the_wait_for_the_input_is_measured() -> None:
    def slow() -> Iterator[pa.RecordBatch]:
        for _ in range(2):
            time.sleep(0.03)
            yield batch([(13, "key")])

    counter = RowCounter(RANGE, (1,))
    began = time.perf_counter()
    for _ in counter.through(slow()):
        time.sleep(0.03)
    took_ms = (time.perf_counter() - began) * 1e3
    assert 60 <= counter.waited_ms <= took_ms - 60


def test_a_share_at_the_bound_gives_a_warning() -> None:
    def warning(rows: int, group_share: float, key_share: float) -> str:
        groups = [{"key_group": 13, "rows": rows, "share": group_share}]
        return skew_of(groups, [{"key": "('k',)", "share": key_share}]).warning

    least, less = DOMINATING_SHARE, DOMINATING_SHARE - 0.01
    assert warning(1000, least, least).startswith("key ('k',)")
    assert warning(1000, least, less).startswith("key group 13")
    assert "" == warning(1000, less, less)
    assert "" == warning(999, least, least)
