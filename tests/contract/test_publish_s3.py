"""Publish a location on an S3 server as a table on the same server."""

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from tests.servers import KEY, SECRET, S3Server
from tests.unit.operations.published import (
    DeltaPublished,
    IcebergPublished,
    Published,
    rows_of_table,
    scanned,
)

from statelog.operations import publish as publish_module
from statelog.store import open_location


def published_on_s3(published: Published, bucket: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Publish six checkpoints of a location in the bucket; the table keeps three."""
    published.location = f"s3://{bucket}/jobs/totals"
    published.history = type(published.history)("on S3", open_location(published.location), 2)
    monkeypatch.setattr(publish_module, "_CLEAN_UP_AGE", publish_module.dt.timedelta(days=-1))
    snapshot_files = 0
    for _ in range(6):
        published.history.micro_batch()
        report = published.publish(retain=3)
        snapshot_files += report.snapshot_files
        assert 3 >= len(report.checkpoints)
    return snapshot_files


def test_a_location_and_its_iceberg_table_on_s3(
    s3_environment: S3Server, s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = IcebergPublished("publish to S3", tmp_path)
    published.options |= {
        "warehouse": f"s3://{s3_bucket}/warehouse",
        "s3.endpoint": s3_environment.endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
    }
    assert published_on_s3(published, s3_bucket, monkeypatch) > 0
    assert 3 == len(published.snapshots())
    for snapshot, checkpoint_id in published.snapshots().items():
        expected = published.expected(checkpoint_id, None)
        assert expected == rows_of_table(scanned(published.table(), snapshot), expected)


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_location_and_its_delta_table_on_s3(
    is_elsewhere: bool,
    s3_environment: S3Server,
    s3_bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Readers of Delta do not follow a path to another bucket, so that a table there has copies."""
    published = DeltaPublished("publish to S3", tmp_path)
    bucket = s3_bucket
    if is_elsewhere:
        bucket = f"{s3_bucket}-tables"
        s3_environment.make_bucket(bucket)
    published.target = {"delta": f"s3://{bucket}/tables/totals"}
    snapshot_files = published_on_s3(published, s3_bucket, monkeypatch)
    assert is_elsewhere == (snapshot_files == 0)
    versions = published.publish().versions
    assert 3 == len(versions)
    options = {**s3_environment.environment, "AWS_ALLOW_HTTP": "true"}
    for checkpoint_id, version in versions.items():
        table = deltalake.DeltaTable(
            published.target["delta"], version=version, storage_options=options
        )
        query = deltalake.QueryBuilder().register("t", table)
        rows = pa.table(query.execute("select * from t"))
        expected = published.expected(checkpoint_id, None)
        assert expected == rows_of_table(rows, expected)


def test_options_of_the_store_reach_the_table_in_a_store_of_its_scheme(
    s3_server: S3Server, s3_bucket: str, tmp_path: Path
) -> None:
    published = DeltaPublished("options", tmp_path)
    published.location = f"s3://{s3_bucket}/jobs/totals"
    store = open_location(published.location, options=s3_server.options)
    published.history = type(published.history)("on S3", store, 2)
    place, snapshot_files = f"s3://{s3_bucket}/table", 0
    for _ in range(4):
        published.history.micro_batch()
        report = published.publish(delta=place, storage_options=s3_server.options)
        snapshot_files += report.snapshot_files
    assert snapshot_files > 0
    on_disk = published.publish(delta=published.folder, storage_options=s3_server.options)
    assert 0 == on_disk.snapshot_files
    published.check()
