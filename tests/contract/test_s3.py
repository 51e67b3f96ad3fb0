"""S3 by its URL alone, and what its errors say."""

import json
import time
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from tests.support.locations.checkpoints import started
from tests.support.locations.histories import History, rows_of
from tests.support.locations.published_tables import (
    DeltaPublished,
    IcebergPublished,
    Published,
    rows_of_table,
    scanned,
)
from tests.support.servers.s3_faults import Fault, S3Proxy
from tests.support.servers.server_process import KEY, SECRET, S3Server, free_port, moto_server

import statelog as sl
from statelog import changelog as cl
from statelog.cli.main import run
from statelog.errors import ObjectNotFoundError, StoreError
from statelog.state.reader import StateReader
from statelog.store import ObstoreStore, open_location, open_store


def credentials() -> dict[str, str]:
    """Where a caller's own credentials come from; pickled by its name."""
    return {"access_key_id": KEY, "secret_access_key": SECRET}


def test_the_changelog_by_url_alone(s3_environment: S3Server, s3_bucket: str):
    with cl.FsStateChangelogStorage(f"s3a://{s3_bucket}/changelog") as storage:
        writer = storage.create_writer("operator", sl.KeyGroupRange(0, 127))
        start = writer.initial_sequence_number()
        changes = [(number % 128, bytes([number % 251]) * 3000) for number in range(1000)]
        for key_group, value in changes:
            writer.append(key_group, value)
        result = writer.persist(start, checkpoint_id=1).result(60)
        handle = result.job_manager_owned
        found = [(change.key_group, change.value) for change in storage.read(handle)]
        assert sorted(found) == sorted(changes)
        (path,) = {entry.handle.path for entry in handle.handles_and_offsets}
    other = open_store(f"s3://{s3_bucket}")
    assert other.head(f"changelog/{path}").size_bytes > 3_000_000


def test_credentials_may_come_from_a_function(s3_server: S3Server, s3_bucket: str):
    options = {
        "endpoint": s3_server.endpoint,
        "region": "us-east-1",
        "credential_provider": credentials_with_expiry,
    }
    store = open_store(f"s3://{s3_bucket}/job", storage_options=options)
    store.put("name", b"x")
    assert bytes(open_store(store.url, storage_options=options).get("name")) == b"x"


def credentials_with_expiry() -> dict[str, object]:
    return {**credentials(), "token": None, "expires_at": None}


def calls(store: ObstoreStore):
    return {
        "put": lambda: store.put("folder/name", b"x"),
        "put-if-absent": lambda: store.put_if_absent("folder/name", b"x"),
        "get": lambda: store.get("folder/name"),
        "get-range": lambda: store.get_range("folder/name", 1, 2),
        "list": lambda: (list(store.list("folder/name")), store.list_folders("folder/name")),
        "delete": lambda: store.delete(["folder/name", "folder/other"]),
    }


def assert_explained(store: ObstoreStore, hint: str, *marks: str) -> None:
    for operation, call in calls(store).items():
        with pytest.raises(StoreError) as caught:
            call()
        text = str(caught.value)
        assert not isinstance(caught.value, ObjectNotFoundError), text
        assert text.startswith(f"{operation} folder/name"), text
        for mark in (store.url, hint, *marks):
            assert mark in text, (operation, mark, text)
        assert "\n" not in text
        assert "<" not in text
        assert SECRET not in text
        assert caught.value.operation == operation
        assert caught.value.url == store.url
        assert len(text) < 600


def test_a_missing_bucket_is_not_a_missing_object(s3_server: S3Server):
    store = open_store("s3://no-such-bucket/job", storage_options=s3_server.options)
    assert_explained(store, "statelog does not create buckets", "NoSuchBucket")


def test_a_job_on_a_missing_bucket_does_not_start(s3_server: S3Server):
    with pytest.raises(StoreError, match="create it, or correct the URL"):
        started(open_store("s3://no-such-bucket/job", storage_options=s3_server.options))


def test_wrong_credentials_say_so():
    with moto_server() as server:
        server.make_bucket("bucket")
        server.ask_for_credentials()
        store = open_store("s3://bucket/job", storage_options=server.options)
        assert_explained(store, "check the credentials", "InvalidAccessKeyId")


def test_no_credentials_say_so(s3_environment: S3Server, s3_bucket: str, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    # Nobody answers there, in place of the address that tells machines their own identity.
    nobody = f"http://127.0.0.1:{free_port()}"
    options = {"max_retries": 0, "metadata_endpoint": nobody}
    store = open_store(f"s3://{s3_bucket}/job", storage_options=options)
    with pytest.raises(StoreError, match="credentials"):
        store.get("name")


def test_an_identity_that_is_refused_is_no_lack_of_rights(
    s3_environment: S3Server, s3_bucket: str, monkeypatch
):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with S3Proxy(s3_environment) as proxy:  # in place of the address of identities, which refuses
        proxy.faults = lambda exchange: Fault.FORBIDDEN
        options = {"max_retries": 0, "metadata_endpoint": proxy.server.endpoint}
        store = open_store(f"s3://{s3_bucket}/job", storage_options=options)
        assert_explained(store, "no credentials were found")
        assert proxy.exchanges


def test_an_endpoint_that_is_not_there_is_given_up_in_bounded_time():
    options = {
        "endpoint": f"http://127.0.0.1:{free_port()}",
        "access_key_id": KEY,
        "secret_access_key": SECRET,
        "max_retries": 1,
    }
    began = time.monotonic()
    assert_explained(open_store("s3://bucket/job", storage_options=options), "cannot be reached")
    assert time.monotonic() - began < 30


def test_forbidden_plain_http_is_reported(s3_server: S3Server, s3_bucket: str):
    options = {**s3_server.options, "allow_http": False, "max_retries": 0}
    store = open_store(f"s3://{s3_bucket}/job", storage_options=options)
    assert_explained(store, "set 'allow_http' to true")


def test_conditional_puts_that_were_switched_off_are_named(s3_server: S3Server, s3_bucket: str):
    options = {**s3_server.options, "conditional_put": "disabled"}
    store = open_store(f"s3://{s3_bucket}/off", storage_options=options)
    with pytest.raises(StoreError, match="omit the option 'conditional_put'"):
        started(store)


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
                    now_ms = made.taken_at_ms[checkpoint_id]
                    rows = rows_of(reader.table(variable.name, now_ms=now_ms))
                    assert rows == made.expected[checkpoint_id].rows(variable.name, now_ms)


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
