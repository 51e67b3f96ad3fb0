"""The newest finished micro-batch of earlier runs, from the files of a checkpointLocation."""

import json

import pytest

from statelog.core.source_position import NOTHING_READ
from statelog.spark.driver.batch_times import QueryTimes

TIMES = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})


class Files:
    """Some files of a checkpointLocation, by name."""

    url = "/query"

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        text = self.files.get(name)
        return None if text is None else text.encode()

    def names(self, folder: str) -> list[str]:
        return [name.split("/")[1] for name in self.files if name.startswith(f"{folder}/")]


def offsets(end: str) -> str:
    return f"v1\n{TIMES}\n{end}"


def times_of(files: Files) -> QueryTimes:
    return QueryTimes(files, has_no_data_source=False)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, None),
        ({"offsets/0": offsets("7")}, None),  # planned, not finished
        ({"offsets/0": offsets("-"), "commits/0": "v1"}, (0, NOTHING_READ)),
        ({"commits/3": "v1"}, None),  # its offsets were removed
    ],
)
def test_only_finished_batches_count(files: dict[str, str], found: tuple[int, str] | None) -> None:
    assert times_of(Files(files)).last_finished() == found


def test_the_newest_finished_micro_batch_has_a_position() -> None:
    files = {f"offsets/{batch}": offsets(str(batch)) for batch in range(3)}
    files |= {f"commits/{batch}": "v1" for batch in range(2)}
    finished = times_of(Files(files)).last_finished()
    assert finished is not None
    assert finished[0] == 1
    assert finished[1] not in (None, NOTHING_READ)
