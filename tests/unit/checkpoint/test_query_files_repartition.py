"""The entry of a repartition that Spark did not finish is told from a batch that was interrupted."""

import json

import pytest
from tests.support.stores.query_files import Files

from statelog.checkpoint.query_files import refuse_unfinished_repartition
from statelog.errors import CheckpointError


def planned(partitions: str | None) -> bytes:
    conf = {} if partitions is None else {"spark.sql.shuffle.partitions": partitions}
    times = {"batchWatermarkMs": 5, "batchTimestampMs": 6, "conf": conf}
    return f"v1\n{json.dumps(times)}\n-".encode()


def test_an_unfinished_repartition_is_rejected_with_the_files_to_delete() -> None:
    files = Files(offsets__6=planned("4"), offsets__7=planned("5"), commits__6=b"")
    with pytest.raises(
        CheckpointError, match=r"batch 7 in file:/q.*offsets/7 and offsets/\.7\.crc"
    ):
        refuse_unfinished_repartition(files)


@pytest.mark.parametrize(
    "files",
    [
        Files(),
        Files(offsets__0=planned("4")),
        Files(offsets__6=planned("4"), offsets__7=planned("4"), commits__6=b""),
        Files(offsets__6=planned("4"), offsets__7=planned("5"), commits__7=b""),
        Files(offsets__7=planned("5"), commits__6=b""),
        Files(offsets__6=planned(None), offsets__7=planned("5")),
        Files(offsets__6=b"v1\n", offsets__7=planned("5")),
    ],
)
def test_other_batches_are_not_rejected(files: Files) -> None:
    refuse_unfinished_repartition(files)
