"""Copy a local location to an S3 server and back."""

import json

from tests.support.locations.histories import History, rows_of
from tests.support.servers.server_process import S3Server

from statelog.cli.main import run
from statelog.state.reader import StateReader
from statelog.store import open_store


def test_to_s3_and_back(s3_environment: S3Server, s3_bucket: str, tmp_path, capsys):
    made = History("to S3", open_store(tmp_path / "here", storage_options={"fsync": False}))
    made.run(8)
    there = f"s3://{s3_bucket}/jobs/moved"
    for source, target in ((tmp_path / "here", there), (there, tmp_path / "back")):
        for first in (True, False):
            assert run(["copy", str(source), str(target), "--json"]) == 0
            report = json.loads(capsys.readouterr().out)
            assert (report["copied"] > 0) == first
    assert run(["copy", there, str(tmp_path / "one"), "--parallelism", "1"]) == 0
    assert "verified" in capsys.readouterr().out
    for location in (there, tmp_path / "back", tmp_path / "one"):
        for checkpoint_id in report["checkpoints"]:
            with StateReader.open(location, checkpoint_id) as reader:
                for variable in reader.variables():
                    rows = rows_of(
                        reader.table(variable.name, now_ms=made.taken_at_ms[checkpoint_id])
                    )
                    model = made.expected[checkpoint_id]
                    assert rows == model.rows(variable.name, made.taken_at_ms[checkpoint_id])
