"""Files that a command reads or writes next to a location: links in it lead no command to other files."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.locations.costly_history import small_job
from tests.support.locations.stored_job import StoredJob


@pytest.fixture
def location(tmp_path: Path) -> Path:
    job = StoredJob(1, tmp_path)
    job.micro_batch()
    return tmp_path / "state"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """Return a folder of the caller with a file of keys and one of values."""
    folder = tmp_path / "private"
    folder.mkdir()
    keys = {"key.k": pa.array([3], pa.int32()), "key.name": ["key 3"]}
    pq.write_table(pa.table(keys), folder / "keys.parquet")
    return folder


def test_edit_reads_no_file_that_a_link_in_the_location_leads_to(
    call, location, private, monkeypatch
):
    (location / "file.parquet").symlink_to(private / "keys.parquet")
    (location / "folder").symlink_to(private)
    (location / "files").mkdir()
    (location / "files" / "part-0.parquet").symlink_to(private / "keys.parquet")
    (location / "files" / "inner").mkdir()
    (location / "inner-folder").mkdir()
    (location / "inner-folder" / "part").symlink_to(private)
    monkeypatch.chdir(location)
    for name in ("file.parquet", "folder", "folder/keys.parquet", "files", "inner-folder"):
        for path in (location / name, name, f"files/inner/../../{name}"):
            for words in (("--delete", str(path)), ("--set", f"total={path}")):
                said = call("edit", str(location), *words, status=2)
                assert "is a symbolic link that leads out" in said, (name, words)


def test_edit_reads_a_file_elsewhere_and_links_within_the_location(
    call, location, private, tmp_path, monkeypatch
):
    (location / "files").mkdir()
    os.link(private / "keys.parquet", location / "files" / "keys.parquet")
    (location / "alias").symlink_to("files")
    (tmp_path / "mine.parquet").symlink_to(private / "keys.parquet")
    monkeypatch.chdir(location)
    mine = ("../mine.parquet", tmp_path / "mine.parquet")
    for path in ("files", "alias", "alias/keys.parquet", *mine):
        report = call.lines("edit", str(location), "--delete", str(path))[0]
        assert sum(report["counts"].values()) == 1, path


def test_a_report_is_not_written_through_a_link(call, tmp_path, private):
    """In a folder that others write to: by its name, or by a temporary name that can be guessed."""
    small_job(tmp_path / "job")
    secret = private / "secret"
    secret.write_text("precious")
    output = tmp_path / "job" / "report.html"
    (tmp_path / "job" / f".report.html.{os.getpid()}").symlink_to(secret)
    words = ("report", str(tmp_path / "job"), "--no-count-keys", "-o")
    call(*words, str(output))
    assert secret.read_text() == "precious"
    assert "<!doctype html>" in output.read_text(encoding="utf-8")
    output.unlink()
    output.symlink_to(secret)
    (tmp_path / "job" / "reports").symlink_to(private)
    for path in (output, tmp_path / "job" / "reports" / "secret"):
        assert "symbolic link that leads out" in call(*words, str(path), status=2)
    (tmp_path / "mine.html").symlink_to(secret)
    assert "it is a symbolic link" in call(*words, str(tmp_path / "mine.html"), status=2)
    assert secret.read_text() == "precious"


def test_an_export_is_not_written_through_a_link(call, location, private):
    (location / "out").symlink_to(private)
    (location / "files").mkdir()
    (location / "files" / "total.parquet").symlink_to(private / "keys.parquet")
    before = (private / "keys.parquet").read_bytes()
    for name in ("out", "out/total.parquet", "files", "files/total.parquet"):
        words = ("read", str(location), "total", "--to", str(location / name), "--overwrite")
        assert "symbolic link that leads out" in call(*words, status=2), name
    assert ["keys.parquet"] == os.listdir(private)
    assert before == (private / "keys.parquet").read_bytes()
