"""What differs between versions of Spark, as far as it can be seen without a session."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkValueError

from statelog.errors import UsageError
from statelog.spark.rows import spark_versions
from statelog.spark.rows.spark_versions import (
    UnsupportedOperationError,
    arrow_of,
    condition_of,
    described_in,
    frames_are_inferred,
    known_arguments,
    offered,
    progress_fields,
    progress_of,
    refuse_before,
    setting_or,
    value_error,
    values_by_partition,
)


@pytest.mark.parametrize("partitions", [1, 2, 7, 128, 1000])
def test_each_partition_has_its_own_value(partitions: int) -> None:
    values = values_by_partition(partitions)
    assert partitions == len(values) == len(set(values))


def test_hashes_are_those_of_sparks_hash_function() -> None:
    """`select hash(0), hash(1)` is 933211791, -559580957."""
    values = values_by_partition(1000)
    assert (933211791 % 1000, -559580957 % 1000) == (values.index(0), values.index(1))


def test_only_arguments_that_a_function_takes_are_given() -> None:
    def taken(value: int, *, zone: str = "UTC") -> tuple[int, str]:
        return value, zone

    assert (1, "Asia/Tokyo") == known_arguments(taken, zone="Asia/Tokyo", later=2)(1)
    assert (1, "UTC") == known_arguments(taken, later=2)(1)
    assert ["append"] == offered(list, ["append", "later"])


@pytest.mark.parametrize(("has_initial", "first"), [(False, (4, 1)), (True, (4, 2))])
def test_frames_are_inferred_as_in_the_running_version(
    has_initial: bool, first: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ((3, 5), (4, 0), (4, 1), (4, 2), (4, 3)):
        monkeypatch.setattr(spark_versions, "SPARK", version)
        assert (version >= first) is frames_are_inferred(has_initial=has_initial)


def test_a_missing_feature_is_rejected_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_versions, "SPARK", (3, 5))
    message = r"^a thing is not available on Spark 3\.5: it requires Spark 4\.0 or later$"
    with pytest.raises(UsageError, match=message):
        refuse_before((4, 0), "a thing")
    monkeypatch.setattr(spark_versions, "SPARK", (4, 0))
    refuse_before((4, 0), "a thing")


class Settings:
    """A session without a setting; Spark raises an error for one that it does not have."""

    def __init__(self) -> None:
        self.conf = self

    def get(self, name: str, *default: str) -> str:
        if default:
            return default[0]
        if spark_versions.SPARK < (4, 0):
            raise KeyError(name)
        return "of spark"


def test_a_setting_that_spark_3_5_does_not_have_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = Settings()
    for version, expected in (((3, 5), "-1"), ((4, 0), "of spark")):
        monkeypatch.setattr(spark_versions, "SPARK", version)
        assert expected == setting_or(session, "a setting", "-1")


class Older:
    """A frame without `toArrow`, whose batches have the session's time zone."""

    def __init__(self, *batches: pa.RecordBatch) -> None:
        self._batches = list(batches)

    def _collect_as_arrow(self) -> list[pa.RecordBatch]:
        return self._batches


def test_rows_are_collected_without_toArrow() -> None:
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC"))])
    there = pa.record_batch({"at": pa.array([3, None], pa.timestamp("us", tz="Asia/Tokyo"))})
    older: Any = Older(there)
    table = arrow_of(older, schema)
    assert schema == table.schema
    assert [3, None] == table.column("at").cast("int64").to_pylist()
    nothing: Any = Older()
    assert schema.empty_table() == arrow_of(nothing, schema)


def test_errors_have_sparks_condition_in_each_version() -> None:
    error = value_error("VALUE_NOT_NON_EMPTY_STR", {"arg_name": "source", "arg_value": ""})
    assert isinstance(error, PySparkValueError)
    assert "VALUE_NOT_NON_EMPTY_STR" == condition_of(error)
    assert "source" in str(error)
    ours = UnsupportedOperationError("no timers", condition="UNSUPPORTED_OPERATION")
    assert "UNSUPPORTED_OPERATION" == condition_of(ours)
    assert "[UNSUPPORTED_OPERATION] no timers" == str(ours)


def test_the_text_of_an_error_of_the_jvm_is_found_in_each_version() -> None:
    class OfTheJvm(Exception):
        pass

    error: Any = OfTheJvm()
    assert described_in(error) is None
    error.desc = "3.5"
    assert "desc" == described_in(error)
    error._desc = "4.0"
    assert "_desc" == described_in(error)


PROGRESS = {
    "id": "5c8fb4d4-6d3f-4b3d-9f4b-1c1b1b1b1b1b", "runId": "5c8fb4d4-6d3f-4b3d-9f4b-1c1b1b1b1b1c",
    "name": None, "timestamp": "2026-11-26T00:00:00.000Z", "batchId": 3, "batchDuration": 5,
    "durationMs": {}, "eventTime": {}, "stateOperators": [], "sources": [],
    "sink": {"description": "sink", "numOutputRows": -1, "metrics": {}}, "numInputRows": 1,
    "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0, "observedMetrics": {},
}  # fmt: skip


def test_progress_is_a_dict_on_3_5_as_sparks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    if spark_versions.SPARK >= (4, 0):
        later = progress_of(PROGRESS)
        assert 3 == later["batchId"] == later.batchId
        monkeypatch.setattr(spark_versions, "SPARK", (3, 5))
    older = progress_of(PROGRESS)
    assert dict is type(older)
    assert PROGRESS == older == progress_fields(older)
