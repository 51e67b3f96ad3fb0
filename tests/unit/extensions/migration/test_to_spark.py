"""The files of a checkpointLocation in which Spark's query begins, from those of statelog's."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.support.locations.batch_records import one_operator

from statelog.checkpoint.batch_record import BatchRecord
from statelog.core.source_position import parse_offsets, position_of
from statelog.errors import CheckpointError, IncompatibleFormatError, UsageError
from statelog.extensions.migration.to_spark import new_files

FILES = '{"logOffset":12}'
KAFKA = '{"topic":{"0":7}}'
OF_STATELOG = "41"


class Files:
    """A checkpointLocation in memory."""

    url = "memory:/query"

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        data = self.files.get(name)
        return None if data is None else data.encode()[-(tail or 10**9) :]

    def names(self, folder: str) -> Sequence[str]:
        parts = (name.rpartition("/") for name in self.files)
        return [name for place, _, name in parts if place == folder]


def entry(number: int) -> str:
    return json.dumps({"path": f"file:///in/{number}", "timestamp": number, "batchId": number})


def query() -> Files:
    """Return a query at batch 5, which read entry 12 of a file source, compacted at 9."""
    times = {
        "batchWatermarkMs": 100,
        "batchTimestampMs": 2_000,
        "conf": {
            "spark.sql.shuffle.partitions": "7",
            "spark.sql.streaming.stateStore.providerClass": "HDFS",
            "spark.sql.streaming.multipleWatermarkPolicy": "max",
        },
    }
    logs = {f"sources/0/{number}": f"v1\n{entry(number)}" for number in (8, 10, 11, 12, 13)}
    compact = "\n".join(["v1", *(entry(number) for number in range(10))])
    return Files(
        {
            "metadata": '{"id":"q"}',
            "offsets/5": "\n".join(["v1", json.dumps(times), FILES, KAFKA, "-", OF_STATELOG]),
            "commits/5": 'v1\n{"nextBatchWatermarkMs":150}',
            "sources/0/9.compact": compact,
            "sources/1/0": "v1\nwhere Kafka began",
            **logs,
        }
    )


def record(**changes: Any) -> BatchRecord:
    values: dict[str, Any] = {
        "batch_id": 5, "time_mode": "eventtime", "now_ms": 2_000, "watermark_ms": 100,
        "position": position_of([FILES, KAFKA, None]), "source_folders": ["0", "1", "2"],
    }  # fmt: skip
    return one_operator(**{**values, **changes})


def files_for_spark(files: Files, **changes: Any) -> tuple[tuple[str | None, ...], dict[str, str]]:
    """Return the offsets of the new query, and its files."""
    offsets, contents = new_files(files, record(**changes), lambda name, value: f"new {value}")
    return offsets, {name: data.decode() for name, data in contents.items()}


@pytest.mark.parametrize(
    "changes",
    [{}, {"source_folders": None}, {"position": None}],
    ids=["all known", "without the names of the logs", "without a position"],
)
def test_the_new_query_begins_where_the_old_one_ended(changes: dict[str, Any]) -> None:
    offsets, contents = files_for_spark(query(), **changes)
    assert offsets == (FILES, KAFKA, None)
    assert list(contents) == ["metadata", "sources/0/0", "sources/0/1", "offsets/0"]
    planned = parse_offsets(contents["offsets/0"].encode(), "offsets/0")
    assert planned.offsets == ('{"logOffset":1}', KAFKA, None)
    assert (planned.watermark_ms, planned.timestamp_ms) == (150, 2_000)
    settings = json.loads(contents["offsets/0"].split("\n")[1])["conf"]
    assert settings == {"spark.sql.streaming.multipleWatermarkPolicy": "new max"}
    assert json.loads(contents["metadata"])["id"] not in ("q", "")
    # Spark has seen the files of the old query, and reads none of them.
    assert contents["sources/0/0"] == "v1"
    version, *lines = contents["sources/0/1"].split("\n")
    assert version == "v1"
    assert [json.loads(line) for line in lines] == [
        {"path": f"file:///in/{number}", "timestamp": number, "batchId": 0} for number in range(13)
    ]


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda files: files.pop("offsets/5"), "not_found"),
        (lambda files: files.pop("commits/5"), "undelivered"),
        (lambda files: files.pop("sources/0/11"), "not_found"),
        (
            lambda files: files.update({"offsets/5": files["offsets/5"].replace('"0":7', '"0":8')}),
            "gap",
        ),
    ],
)
def test_a_position_that_spark_cannot_continue_is_rejected(
    edit: Callable[[dict[str, str]], Any], reason: str
) -> None:
    changed = query()
    edit(changed.files)
    with pytest.raises(CheckpointError) as raised:
        files_for_spark(changed)
    assert raised.value.reason == reason


def test_the_state_of_a_different_query_and_named_sources_are_rejected() -> None:
    with pytest.raises(UsageError, match="of query q, but the state is that of query other"):
        files_for_spark(query(), query_id="other")
    with pytest.raises(UsageError, match=r"of query \(none\), but the state"):
        files_for_spark(Files({}))
    changed = query()
    changed.files["offsets/5"] = changed.files["offsets/5"].replace("v1", "v2", 1)
    with pytest.raises(IncompatibleFormatError, match="by source name"):
        files_for_spark(changed)
