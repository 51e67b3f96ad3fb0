"""Publish a location on an S3 server as a table on the same server."""

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from tests.support.locations.published_tables import (
    DeltaPublished,
    IcebergPublished,
    Published,
    rows_of_table,
    scanned,
)
from tests.support.servers.server_process import KEY, SECRET, S3Server

from statelog.store import open_location


def publish_to_s3(published: Published, bucket: str) -> None:
    """Publish six checkpoints of a location in the bucket; the table retains three."""
    published.location = f"s3://{bucket}/jobs/totals"
    published.history = type(published.history)("on S3", open_location(published.location), 2)
    for _ in range(6):
        published.history.micro_batch()
        assert 3 >= len(published.publish(retain=3).checkpoints)


def test_a_location_and_its_iceberg_table_on_s3(
    s3_environment: S3Server, s3_bucket: str, tmp_path: Path
) -> None:
    published = IcebergPublished("publish to S3", tmp_path)
    published.options |= {
        "warehouse": f"s3://{s3_bucket}/warehouse",
        "s3.endpoint": s3_environment.endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
    }
    publish_to_s3(published, s3_bucket)
    assert 3 == len(published.snapshots())
    for snapshot, checkpoint_id in published.snapshots().items():
        expected = published.expected(checkpoint_id, None)
        assert expected == rows_of_table(scanned(published.table(), snapshot), expected)


@pytest.mark.parametrize("by_environment", [True, False])
def test_a_location_and_its_delta_table_on_s3(
    by_environment: bool,
    s3_server: S3Server,
    s3_bucket: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """The options of the location's store reach the table in a store of its scheme."""
    published = DeltaPublished("publish to S3", tmp_path)
    published.target = {"delta": f"s3://{s3_bucket}-tables/tables/totals"}
    s3_server.make_bucket(f"{s3_bucket}-tables")
    if by_environment:
        request.getfixturevalue("s3_environment")
        publish_to_s3(published, s3_bucket)
    else:
        published.target["storage_options"] = s3_server.options
        published.location = f"s3://{s3_bucket}/jobs/totals"
        store = open_location(published.location, options=s3_server.options)
        published.history = type(published.history)("on S3", store, 2)
        for _ in range(6):
            published.history.micro_batch()
            published.publish(retain=3)
    versions = published.publish(retain=3).versions
    assert 3 == len(versions)
    options = {**s3_server.environment, "AWS_ALLOW_HTTP": "true"}
    for checkpoint_id, version in versions.items():
        table = deltalake.DeltaTable(
            published.target["delta"], version=version, storage_options=options
        )
        query = deltalake.QueryBuilder().register("t", table)
        rows = pa.table(query.execute("select * from t"))
        expected = published.expected(checkpoint_id, None)
        assert expected == rows_of_table(rows, expected)
