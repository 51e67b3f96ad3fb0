"""What the benchmarks count below a folder."""

from __future__ import annotations

from pathlib import Path

from bench.harness.query_run import files_and_bytes, written


def test_files_of_several_folders_are_counted(tmp_path: Path) -> None:
    for name, size in (("state/0/1.delta", 10), ("statelog/chk-1/_metadata", 20), ("offsets/0", 5)):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(size))
    assert files_and_bytes(tmp_path / "state", tmp_path / "statelog", tmp_path / "none") == (2, 30)
    assert files_and_bytes(tmp_path, without="statelog") == (2, 15)
    assert written(tmp_path, 4) == {"files_per_batch": 0.5, "bytes_per_batch": 8}


def test_a_file_that_is_gone_when_its_size_is_asked_for_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "stays").write_bytes(b"12")
    (tmp_path / "gone").symlink_to(tmp_path / "deleted")
    assert files_and_bytes(tmp_path) == (1, 2)
