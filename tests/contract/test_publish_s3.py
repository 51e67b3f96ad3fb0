"""Publish a location on an S3 server as a table on the same server."""

from pathlib import Path

from tests.servers import KEY, SECRET, S3Server
from tests.unit.operations.published import Published, rows_of_table, scanned

from statelog.operations import publish as publish_module
from statelog.operations.publish_commit import CHECKPOINT
from statelog.store import open_location


def test_a_location_and_its_table_on_s3(
    s3_environment: S3Server, s3_bucket: str, tmp_path: Path, monkeypatch
) -> None:
    published = Published("publish to S3", tmp_path)
    published.location = f"s3://{s3_bucket}/jobs/totals"
    published.history = type(published.history)("on S3", open_location(published.location), 2)
    published.options |= {
        "warehouse": f"s3://{s3_bucket}/warehouse",
        "s3.endpoint": s3_environment.endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
    }
    monkeypatch.setattr(publish_module, "_CLEAN_UP_AGE", publish_module.dt.timedelta(days=-1))
    snapshot_files = 0
    for _ in range(6):
        published.history.micro_batch()
        report = published.publish(retain=3)
        snapshot_files += report.snapshot_files
    assert snapshot_files > 0
    table = published.table()
    assert 3 == len(table.metadata.snapshots)
    for snapshot in table.metadata.snapshots:
        checkpoint_id = int(snapshot.summary[CHECKPOINT])
        expected = published.expected(checkpoint_id, None)
        assert expected == rows_of_table(scanned(table, snapshot.snapshot_id), expected)
