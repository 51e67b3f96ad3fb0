"""Secrets in URLs are hidden from every text for people."""

import logging
import pickle
import traceback

import pytest

from statelog.checkpoint.history import Entries
from statelog.checkpoint.ownership import claim_location
from statelog.cli.main import run
from statelog.errors import StatelogError, StoreError
from statelog.redaction import redacted, without_secrets
from statelog.store import CachedStore, open_existing_store, open_store

KEY, SECRET = "AKIAEXAMPLE", "wJalr/XUtn+FEMI"
WITH_SECRETS = [
    (f"s3://{KEY}:{SECRET}@bucket/job", "s3://***@bucket/job"),
    (f"s3a://{KEY}:{SECRET}@bucket/time=12:30", "s3a://***@bucket/time=12:30"),
    (f"s3://{KEY}@bucket/job", "s3://***@bucket/job"),
    (f"gs://bucket/job?token={SECRET}", "gs://bucket/job?***"),
    (f"az://c/job?sv=2024&sig={SECRET}&se=1", "az://c/job?***"),
    (f"https://a.blob.core.windows.net/c?sig={SECRET}", "https://a.blob.core.windows.net/c?***"),
    (f"http://user:{SECRET}@127.0.0.1:9000/b", "http://***@127.0.0.1:9000/b"),
    (f"sftp://user:{SECRET}@host:22/a b", "sftp://***@host:22/a b"),
    ("sftp://user:1234@host/a", "sftp://***@host/a"),
    (f"az://c/my job?sig={SECRET}", "az://c/my job?sig=***"),
    (f"host=h user=u password={SECRET}", "host=h user=u password=***"),
    (f"host=h password = {SECRET} port=1", "host=h password = *** port=1"),
    (f"host=h password='{SECRET} x' port=1", "host=h password=*** port=1"),
    (f"connect(password='{SECRET}')", "connect(password=***)"),
    (f"{{'sasl.password': '{SECRET}', 'a': 1}}", "{'sasl.password': ***, 'a': 1}"),
    (f'{{"aws_secret_access_key": "{SECRET}"}}', '{"aws_secret_access_key": ***}'),
    (f"token:{SECRET}", "token:***"),
    (f"AccountKey={SECRET};Endpoint=x", "AccountKey=***;Endpoint=x"),
]
WITHOUT = [
    "/data/a@b?c",
    "file:///data/a:b@c?d=e",
    "memory://one@two",
    "s3://bucket/day=2024-01-01/a@b",
    "s3://bucket/time=12:30@noon",
    "abfs://container@account.dfs.core.windows.net/a",
    "hdfs://host:8020/user@host/a",
    "sftp://user@host/a",
    "x = y",
    "/data/token=12/part-0",
    "s3://bucket/job/token=12/part-0",
    "a token: write it to a file",
    "no secret, no password",
    "keys=[1] monkey=2",
]


@pytest.mark.parametrize(("typed", "shown"), WITH_SECRETS)
def test_a_secret_is_hidden(typed, shown):
    assert shown == redacted(typed)
    assert shown == redacted(shown), "twice is the same"
    inside = redacted(f"get chk-1/_metadata in '{typed}' failed")
    assert SECRET not in inside
    assert KEY not in inside
    assert "failed" in inside


@pytest.mark.parametrize("typed", WITHOUT)
def test_a_text_without_secrets_is_unchanged(typed):
    assert typed == redacted(typed)


def test_errors_hide_secrets_in_message_and_facts():
    url = f"s3://{KEY}:{SECRET}@bucket"
    error = StoreError(f"get in {url} failed", url=url, path="chk-1/_metadata", batch_id=3)
    again = pickle.loads(pickle.dumps(error))
    for one in (error, again):
        assert SECRET not in str(one) + repr(one) + repr(one.facts)
        assert ("s3://***@bucket", "chk-1/_metadata", 3) == (one.url, one.path, one.batch_id)


def test_a_cause_hides_secrets_too():
    plain = ValueError("no secret")
    assert without_secrets(plain) is plain
    shown = without_secrets(ValueError(f"at s3://{KEY}:{SECRET}@b"))
    assert (ValueError, "at s3://***@b") == (type(shown), str(shown))

    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one}{two}")

    found = without_secrets(Odd("s3://", f"{KEY}:{SECRET}@b"))
    assert "Odd: s3://***@b" == str(found)


OPTIONS = {
    "endpoint": "http://127.0.0.1:9", "region": "r", "access_key_id": KEY,
    "secret_access_key": SECRET, "max_retries": 0, "retry_timeout": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("url", "options"),
    [
        (f"s3://{KEY}:{SECRET}@bucket/job?token={SECRET}", OPTIONS),
        (f"sftp://user:{SECRET}@127.0.0.1:9/job", {}),
        (f"az://acc:{SECRET}@container/job", {}),
    ],
)
def test_a_store_never_shows_a_secret(url, options):
    store = open_store(url, storage_options=options)
    assert SECRET not in repr(store) + store.url + CachedStore(store, 1).url
    copy = pickle.loads(pickle.dumps(store))
    assert copy._url == url if hasattr(copy, "_url") else copy._location == url
    for use in (
        lambda: store.get("chk-1/_metadata"),
        lambda: store.put("a", b"1"),
        lambda: list(store.list("chk-1")),
    ):
        with pytest.raises(StatelogError) as caught:
            use()
        report = "".join(traceback.format_exception(caught.value))
        assert SECRET not in report
        assert SECRET not in repr(caught.value.facts)
        assert store.url in str(caught.value), "it says where"


def test_wrong_urls_are_refused_without_their_secrets():
    for url in (f"s9://{KEY}:{SECRET}@bucket", f"s3:{KEY}:{SECRET}@bucket", f"s3:///?sig={SECRET}"):
        with pytest.raises(StatelogError) as caught:
            open_existing_store(url)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize("verb", ["checkpoints", "verify", "gc", "read"])
def test_the_command_line_never_prints_a_secret(verb, capsys, caplog, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_MAX_RETRIES", "0")
    caplog.set_level(logging.DEBUG)
    for url in (f"az://user:{SECRET}@container/job", f"s9://{KEY}:{SECRET}@bucket"):
        assert run([verb, url]) in (1, 2)
        said = capsys.readouterr()
        assert "***@" in said.err
        assert SECRET not in said.out + said.err + caplog.text


def test_a_location_on_memory_is_shown_whole(capsys):
    store = open_store("memory://a@b?c")
    claim_location(Entries(store), "owner", lambda: 0)
    assert run(["checkpoints", "memory://a@b?c"]) == 0
    assert "memory://a@b?c is claimed" in capsys.readouterr().out
