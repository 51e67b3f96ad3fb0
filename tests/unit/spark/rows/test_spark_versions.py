"""What differs between versions of Spark, as far as it can be seen without a session."""

import pytest

from statelog.spark.rows import spark_versions
from statelog.spark.rows.spark_versions import (
    frames_are_inferred,
    known_arguments,
    offered,
    values_by_partition,
)


@pytest.mark.parametrize("partitions", [1, 2, 7, 128, 1000])
def test_each_partition_has_a_value_of_its_own(partitions: int) -> None:
    values = values_by_partition(partitions)
    assert partitions == len(values) == len(set(values))


def test_hashes_are_those_of_sparks_hash_function() -> None:
    """`select hash(0), hash(1)` is 933211791, -559580957."""
    assert {0: 933211791 % 1000, 1: -559580957 % 1000} == {
        value: place for place, value in enumerate(values_by_partition(1000)) if value < 2
    }


def test_only_arguments_that_a_function_takes_are_given() -> None:
    def taken(value: int, *, zone: str = "UTC") -> tuple[int, str]:
        return value, zone

    assert (1, "Asia/Tokyo") == known_arguments(taken, zone="Asia/Tokyo", later=2)(1)
    assert (1, "UTC") == known_arguments(taken, later=2)(1)
    assert ["append"] == offered(list, ["append", "later"])


@pytest.mark.parametrize(
    ("version", "inferred"),
    [
        ((4, 0), (False, False)),
        ((4, 1), (True, False)),
        ((4, 2), (True, True)),
        ((4, 3), (True, True)),
    ],
)
def test_frames_are_inferred_as_in_the_running_version(
    version: tuple[int, int], inferred: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_versions, "SPARK", version)
    assert inferred == tuple(frames_are_inferred(has_initial=one) for one in (False, True))
