"""Offsets, commits and ids of a query, read from files as Spark and Hadoop write them."""

import json
import zlib

import pytest
from tests.support.stores.query_files import Files

from statelog.checkpoint.query_files import (
    newest_offsets,
    read_offsets,
    recorded_query_id,
    refuse_unfinished_repartition,
)
from statelog.errors import CheckpointError, IncompatibleFormatError

TIMES = json.dumps({"batchWatermarkMs": 5, "batchTimestampMs": 6, "conf": {}})
LONG = "x" * 2000


def offsets(*texts: str) -> bytes:
    return "\n".join(["v1", TIMES, *texts]).encode()


def checksums(data: bytes) -> bytes:
    """Return what Hadoop writes next to a file on local disk."""
    blocks = [data[start : start + 512] for start in range(0, len(data), 512)]
    return b"crc\0\0\0\2\0" + b"".join(zlib.crc32(part).to_bytes(4, "big") for part in blocks)


def test_the_newest_entry_is_the_one_with_the_highest_number():
    files = Files()
    assert newest_offsets(files) is None
    files.contents = {
        "offsets/9": offsets("1"),
        "offsets/10": offsets("1", "-"),
        "offsets/.11.abc.tmp": b"",
        "offsets/.10.crc": checksums(offsets("1", "-")),
    }
    newest = newest_offsets(files)
    assert newest is not None
    assert (("1", None), 2) == (newest.offsets, newest.sources)
    assert (5, 6) == (newest.watermark_ms, newest.timestamp_ms)
    assert read_offsets(files, 11) is None


@pytest.mark.parametrize("length", [0, 1, 2, 30, 512, 1100])
def test_an_entry_that_a_power_failure_cut_short_is_damaged(length):
    whole = offsets(json.dumps({"a": LONG}))
    files = Files(offsets__3=whole[:length])
    files.contents["offsets/.3.crc"] = checksums(whole)
    match = r"offset log of file:/q is damaged: .*log rewind file:/q"
    with pytest.raises(CheckpointError, match=match) as raised:
        newest_offsets(files)
    assert "damaged" == raised.value.reason
    files.contents["offsets/3"] = whole
    assert newest_offsets(files) is not None


def test_a_file_without_checksums_is_skipped():
    for sums in (b"", b"crc", b"other  bytes", b"crc\0\0\0\0\0"):
        files = Files(offsets__3=offsets("1"))
        files.contents["offsets/.3.crc"] = sums
        assert newest_offsets(files) is not None


def test_an_entry_of_a_newer_version_is_not_called_damaged():
    with pytest.raises(IncompatibleFormatError, match="version b'v3'"):
        newest_offsets(Files(offsets__0=b"v3\n{}\n1"))


def test_the_id_of_a_query_is_read_or_the_file_is_named():
    assert "" == recorded_query_id(Files())
    assert "one" == recorded_query_id(Files(metadata=b'{"id":"one","later":1}'))
    for torn in (b"", b'{"id":', b"{}"):
        with pytest.raises(CheckpointError, match="file:/q/metadata does not contain") as raised:
            recorded_query_id(Files(metadata=torn))
        assert "damaged" == raised.value.reason


def planned(partitions: str | None) -> bytes:
    """Return the offsets of a batch with this number of shuffle partitions."""
    conf = {} if partitions is None else {"spark.sql.shuffle.partitions": partitions}
    times = {"batchWatermarkMs": 5, "batchTimestampMs": 6, "conf": conf}
    return f"v1\n{json.dumps(times)}\n-".encode()


def test_an_unfinished_repartition_is_rejected_with_the_files_to_delete():
    files = Files(offsets__6=planned("4"), offsets__7=planned("5"), commits__6=b"")
    match = r"batch 7 in file:/q.*offsets/7 and offsets/\.7\.crc"
    with pytest.raises(CheckpointError, match=match):
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
def test_other_batches_are_not_rejected(files):
    refuse_unfinished_repartition(files)
