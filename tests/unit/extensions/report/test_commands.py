"""`statelog report`: the file that it writes, the figures that it prints."""

from pathlib import Path

from tests.support.locations.costly_history import small_job


def test_a_page_is_written(call, tmp_path: Path) -> None:
    small_job(tmp_path / "job")
    output = tmp_path / "out.html"
    said = call("report", str(tmp_path / "job"), "-o", str(output), "--no-count-keys")
    text = output.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and str(tmp_path / "job") in text
    assert f"wrote {output}" in said and "2 checkpoints" in said
    assert "attention Tasks were repeated 2 times" in said
    assert [output.name] == [path.name for path in tmp_path.iterdir() if path.is_file()]


def test_figures_are_printed_as_json_and_no_page_is_written(call, tmp_path: Path) -> None:
    small_job(tmp_path / "job")
    output = tmp_path / "out.html"
    printed = call.lines("report", str(tmp_path / "job"), "-o", str(output), "--latency", "7")[0]
    assert not output.exists()
    assert (4, 7.0) == (printed["newest_id"], printed["restart"]["speeds"]["latency_ms"])
    assert "s3" == printed["bill"]["prices"]["name"]


def test_prices_are_chosen_and_changed(call, tmp_path: Path) -> None:
    small_job(tmp_path / "job")
    printed = call.lines("report", str(tmp_path / "job"), "--prices", "gcs", "--put-price", "2")[0][
        "bill"
    ]["prices"]
    assert ("gcs", 2.0, 0.02) == (printed["name"], printed["puts_per_1000"], printed["gb_month"])
    said = call("report", str(tmp_path / "job"), "--prices", "other", status=2)
    assert "--prices must be one of s3, s3-express, gcs, azure" in said


def test_damage_is_a_finding_and_the_page_is_written(call, tmp_path: Path) -> None:
    small_job(tmp_path / "job")
    path = tmp_path / "job" / "chk-3" / "_metadata"
    path.write_bytes(path.read_bytes()[:-9])
    output = tmp_path / "out.html"
    said = call("report", str(tmp_path / "job"), "-o", str(output), status=1)
    assert "damage Checkpoint 3 is damaged" in said
    assert "Checkpoint 3 is damaged" in output.read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_written_is_a_wrong_call(call, tmp_path: Path) -> None:
    small_job(tmp_path / "job")
    output = tmp_path / "none" / "out.html"
    said = call("report", str(tmp_path / "job"), "-o", str(output), status=2)
    assert f"cannot write {output}" in said
