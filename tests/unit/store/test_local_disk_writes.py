"""Our own way to local disk: pieces as they lie, seen whole or not at all."""

import os

import pytest

from statelog.store import open_store
from statelog.store.local_disk import can_write, write_object

PIECES = [b"one", b"", bytearray(b"two"), memoryview(b"three"), b"4" * 5000]
WHOLE = b"".join(bytes(piece) for piece in PIECES)


@pytest.mark.parametrize("most", [1, 2, 4, 1000, 10**6])
def test_a_short_write_goes_on(tmp_path, monkeypatch, most):
    real = os.writev

    def short(descriptor: int, pieces: list[memoryview]) -> int:
        taken, room = [], most
        for piece in pieces:
            taken.append(piece[:room])
            room -= len(taken[-1])
        return real(descriptor, taken)

    monkeypatch.setattr(os, "writev", short)
    write_object(str(tmp_path), "a/b", PIECES, fsync=False)
    assert WHOLE == (tmp_path / "a/b").read_bytes()


def test_more_pieces_than_one_call_takes_are_written(tmp_path):
    pieces = [str(number).encode() for number in range(3000)]
    open_store(str(tmp_path), storage_options={"fsync": False}).put("many", pieces)
    assert b"".join(pieces) == (tmp_path / "many").read_bytes()


def test_an_incomplete_file_is_no_object(tmp_path, monkeypatch):
    store = open_store(str(tmp_path), storage_options={"fsync": True})
    seen = []
    real = os.rename

    def looking(source: str, target: str) -> None:
        seen.append([info.path for info in store.list()])
        real(source, target)

    monkeypatch.setattr(os, "rename", looking)
    store.put("dstl/name", b"content")
    assert [[]] == seen
    assert ["dstl/name"] == [info.path for info in store.list()]


@pytest.mark.parametrize("name", ["a", "a/b.c", "job_1", "a-b/c=d/_metadata", "x@1"])
def test_plain_names_are_written_here(name):
    assert can_write(name)


@pytest.mark.parametrize(
    "name",
    ["", "/", "a/", "/a", "a//b", ".", "..", "../a", "a/../b", "a/.", "a b", "a%b", "a#1", "ä"],
)
def test_names_that_obstore_may_escape_are_left_to_it(name):
    assert not can_write(name)


@pytest.mark.parametrize("name", ["a b/c", "50%/x", "ä/ö"])
def test_odd_names_come_back_as_they_were(tmp_path, name):
    store = open_store(str(tmp_path), storage_options={"fsync": False})
    store.put(name, PIECES)
    assert WHOLE == bytes(store.get(name))
    assert [name] == [info.path for info in store.list()]
