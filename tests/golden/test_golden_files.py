"""Files written by Flink 2.3.0 read as their manifests say, to the last byte."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from statelog.changelog.reader import read_change_batches, read_changes
from statelog.format.segment import parse_segment
from statelog.model import (
    ByteStreamStateHandle,
    ChangelogStateHandle,
    FileStateHandle,
    HandleAndOffset,
    KeyGroupRange,
    StateChange,
)
from statelog.store import open_store

HERE = Path(__file__).parent
MANIFESTS = sorted(HERE.glob("*.json"))


def expected_set(change_set: dict[str, Any]) -> list[tuple[int, int, str]]:
    return [
        (change["kg"], change["len"], change.get("hex") or change.get("sha256", ""))
        for change in change_set["changes"]
    ]


def described(change: StateChange, like: tuple[int, int, str]) -> tuple[int, int, str]:
    hashed = len(like[2]) == 64 and like[1] != 32
    value = hashlib.sha256(change.value).hexdigest() if hashed else change.value.hex()
    return change.key_group, len(change.value), value


def handle_of(manifest: dict[str, Any], inline: bool = False) -> ChangelogStateHandle:
    name = manifest["file"]
    stream = (
        ByteStreamStateHandle(name, (HERE / name).read_bytes())
        if inline
        else FileStateHandle(name, manifest["handleStateSize"])
    )
    return ChangelogStateHandle(
        key_group_range=KeyGroupRange(0, 32767),
        handles_and_offsets=tuple(
            HandleAndOffset(stream, each["offset"]) for each in manifest["changeSets"]
        ),
        size_bytes=sum(each["size"] for each in manifest["changeSets"]),
        incremental_size_bytes=0,
        state_handle_id="golden",
    )


@pytest.mark.parametrize("inline", [False, True], ids=["file", "inline"])
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_every_change_of_a_golden_file_is_read(path: Path, inline: bool) -> None:
    manifest = json.loads(path.read_text())
    data = (HERE / manifest["file"]).read_bytes()
    assert manifest["fileSize"] == len(data)
    assert manifest["fileSha256"] == hashlib.sha256(data).hexdigest()
    expected = [change for each in manifest["changeSets"] for change in expected_set(each)]
    changes = list(read_changes(open_store(str(HERE)), handle_of(manifest, inline)))
    pairs = zip(changes, expected, strict=True)
    assert expected == [described(change, like) for change, like in pairs]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_columns_say_the_same_as_single_changes(path: Path) -> None:
    manifest = json.loads(path.read_text())
    store, handle = open_store(str(HERE)), handle_of(manifest)
    columns = [
        StateChange(row["key_group"], row["value"])
        for batch in read_change_batches(store, handle)
        for row in batch.to_pylist()
    ]
    assert list(read_changes(store, handle)) == columns


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_offsets_are_found_by_walking_a_foreign_file(path: Path) -> None:
    manifest = json.loads(path.read_text())
    segment = parse_segment((HERE / manifest["file"]).read_bytes())
    assert sorted(each["offset"] for each in manifest["changeSets"]) == segment.set_offsets()
    assert (manifest["handleStateSize"], manifest["compressed"], None) == (
        len(segment.payload),
        segment.compressed,
        segment.trailer,
    )


@pytest.mark.parametrize("name", ["small-plain.bin", "small-snappy.bin"])
def test_the_worked_example_reads_as_the_page_says(name: str) -> None:
    data = (HERE / "vectors" / name).read_bytes()
    handle = ChangelogStateHandle(
        key_group_range=KeyGroupRange(0, 127),
        handles_and_offsets=tuple(
            HandleAndOffset(ByteStreamStateHandle(name, data), offset) for offset in (0, 51, 72)
        ),
        size_bytes=0,
        incremental_size_bytes=0,
        state_handle_id="vector",
    )
    expected = [(-1, "aa"), (1, "04"), (3, "010203"), (3, "0506"), (5, b"hello".hex()), (0, "")]
    changes = read_changes(open_store("memory://vectors"), handle)
    assert expected == [(change.key_group, change.value.hex()) for change in changes]


def test_a_snappy_file_of_several_blocks_is_read_whole() -> None:
    data = (HERE / "vectors" / "big-snappy.bin").read_bytes()
    payload = parse_segment(data).payload
    assert len(payload) == 270028
    assert bytes(index % 251 for index in range(200000)) in bytes(payload)
