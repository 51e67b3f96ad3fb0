"""The stream of changes, called as each version of Spark calls it."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.locations.histories import GROUPS, History, local

from statelog.checkpoint.history import read_checkpoint
from statelog.checkpoint.restore import find_checkpoint
from statelog.checkpoint.retained import list_tags
from statelog.errors import CheckpointError, ObjectNotFoundError
from statelog.extensions.read.changes import ChangeFeed
from statelog.extensions.spark_source.changes import ChangesRead, ChangeStream
from statelog.extensions.spark_source.readers import Location, spark_schema
from statelog.model import KeyGroupRange
from statelog.spark.rows.types import arrow_schema
from statelog.state.reader import StateReader
from statelog.store import open_store

BOUND = 8


def a_history(folder: Path, batches: int, retained: int = 9) -> History:
    history = History("stream", local(folder), retained=retained)
    history.rng.random = lambda: 0.9  # type: ignore[method-assign]  # the schema stays as it is
    history.run(batches)
    return history


def stream(folder: Path, name: str | None = None, **options: Any) -> ChangeStream:
    with StateReader.open(folder) as reader:
        columns = ChangeFeed(reader, []).schema
    halves = [KeyGroupRange(0, 2), KeyGroupRange(3, GROUPS - 1)]
    read = ChangesRead(
        location=Location(str(folder)), operator="op", variable=None, ranges=halves, columns=columns
    )
    values: dict[str, Any] = {"start": None, "limit": None, **options}
    reader_option = None if name is None else (name, BOUND)
    return ChangeStream(read, arrow_schema(spark_schema(columns)), reader=reader_option, **values)


def offset(folder: Path, checkpoint_id: int) -> dict[str, int | str]:
    """Return the offset of a checkpoint that the location has, or of one that it has deleted."""
    store = open_store(str(folder))
    try:
        position = read_checkpoint(store, checkpoint_id).checkpoint.position
    except ObjectNotFoundError:
        newest = find_checkpoint(store).position
        position = replace(newest, checkpoint_id=checkpoint_id, attempt="")
    return {"checkpoint": checkpoint_id, "position": position.to_text()}


def limit(most: int | None) -> Any:
    return SimpleNamespace() if most is None else SimpleNamespace(max_files=most)


def rows_of(source: ChangeStream, parts: list[Any]) -> list[dict[str, Any]]:
    return [row for part in parts for batch in source.read(part) for row in batch.to_pylist()]


def names(folder: Path) -> list[tuple[str, int]]:
    store = open_store(str(folder))
    return [(tag.name, tag.checkpoint_id) for tag in list_tags(store)]


def test_offsets_follow_the_limit_that_spark_gives(tmp_path: Path) -> None:
    a_history(tmp_path, 6)
    source = stream(tmp_path, start=1, limit=2)
    offsets = {number: offset(tmp_path, number) for number in range(1, 7)}
    assert source.initialOffset() == offsets[1]
    # Spark's limit counts, not that of the stream.
    for begin, most, end in ((1, 2, 3), (3, 1, 4), (1, None, 6), (6, 2, 6)):
        assert source.latestOffset(offsets[begin], limit(most)) == offsets[end]
    assert source.reportLatestOffset() == offsets[6]
    parts = source.partitions(offsets[1], offsets[3])
    between = offsets[1]["position"], offsets[3]["position"]
    assert [part.value[:2] for part in parts] == [between] * 2
    assert {row["checkpoint_id"] for row in rows_of(source, parts)} == {2, 3}
    assert source.partitions(offsets[3], offsets[3]) == []


def test_without_spark_s_limits_the_stream_bounds_itself(tmp_path: Path) -> None:
    history = a_history(tmp_path, 5)
    source = stream(tmp_path, start=1, limit=3)
    source.initialOffset()
    for end in (4, 5, 5):
        assert source.latestOffset() == offset(tmp_path, end)
    again = stream(tmp_path, start=1, limit=1)  # a restart: Spark plans the last batch again
    again.partitions(offset(tmp_path, 2), offset(tmp_path, 3))
    assert again.latestOffset() == offset(tmp_path, 4)
    history.run(2)
    available = stream(tmp_path, start=1)
    available.prepareForTriggerAvailableNow()
    history.run(2)  # what is available was decided before
    assert available.latestOffset(offset(tmp_path, 5), limit(None)) == offset(tmp_path, 7)


def test_a_new_stream_begins_with_the_whole_state(tmp_path: Path) -> None:
    history = a_history(tmp_path, 3, retained=1)
    source = stream(tmp_path, name="copy", limit=1)
    begin = source.initialOffset()
    end = source.latestOffset(begin, limit(1))
    assert end == offset(tmp_path, 3)
    assert names(tmp_path) == [("copy.start", 3)], "kept until it was read"
    history.run(3)
    rows = rows_of(source, source.partitions(begin, end))
    assert {(row["change"], row["checkpoint_id"]) for row in rows} == {("insert", 3)}
    source.commit(end)
    assert names(tmp_path) == [("copy", 3)]
    assert stream(tmp_path, name="copy").initialOffset() == offset(tmp_path, 3), "it goes on there"
    history.run(BOUND)
    said = r"reader 'copy' has read up to checkpoint 3 .*raise readerMaxCheckpoints, which is 8"
    with pytest.raises(CheckpointError, match=said):
        source.latestOffset(end, limit(1))
    with pytest.raises(CheckpointError, match="name it with the option reader"):
        stream(tmp_path).partitions(offset(tmp_path, 3), offset(tmp_path, 6 + BOUND))


@pytest.mark.parametrize("name", [None, "copy"])
def test_a_planned_batch_is_not_read_of_another_history(tmp_path: Path, name: str | None) -> None:
    """A backup was restored after the plan, and the query committed the number again, and the next one."""
    folder, backup = tmp_path / "state", tmp_path / "backup"
    history = a_history(folder, 2)
    shutil.copytree(folder, backup)
    history.run(2)
    source = stream(folder, name)
    begin = source.initialOffset()
    end = source.latestOffset(begin, limit(None))
    part, *_ = source.partitions(begin, end)
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    history.restart()
    while history.coordinator.next_checkpoint_id <= int(end["checkpoint"]) + 1:
        history.micro_batch()
    again = stream(folder, name)
    calls: list[Callable[[], object]] = [
        lambda: again.partitions(begin, end),
        lambda: list(again.read(part)),
    ]
    if name is not None:
        calls.append(lambda: again.commit(end))
    for call in calls:
        with pytest.raises(CheckpointError) as refused:
            call()
        assert "not_newer" == refused.value.reason
