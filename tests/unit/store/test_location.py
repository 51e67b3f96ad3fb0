"""What people may type as the place of a store, and as its options."""

import pickle

import pytest

from statelog.errors import InvalidOptionsError
from statelog.store import open_store
from statelog.store.client import _CLIENT_KEYS, _arguments, make_client, request_policy
from statelog.store.location import AZURE, GCS, S3, SCHEMES, local_path, normalize_url

ENVIRONMENT = ("AWS_", "GOOGLE_", "AZURE_")
SECRET = "do-not-show-me"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith(ENVIRONMENT):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("/data/job", "file:///data/job"),
        ("/data/job/", "file:///data/job"),
        ("/data/../job", "file:///job"),
        ("/data/100%20x", "file:///data/100%2520x"),
        ("file:/data/job", "file:///data/job"),
        ("file:///data/a%20b", "file:///data/a b"),
        ("FILE:///data/job", "file:///data/job"),
        ("memory://one", "memory://one"),
        ("memory:one/", "memory://one"),
        ("s3://bucket", "s3://bucket"),
        ("s3a://bucket/a/b/", "s3://bucket/a/b"),
        ("S3N://bucket/a", "s3://bucket/a"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("gcs://bucket/a", "gs://bucket/a"),
        ("az://container/a", "az://container/a"),
        (
            "abfs://container@account.dfs.core.windows.net/a/b",
            "az://container@account.dfs.core.windows.net/a/b",
        ),
        (
            "abfss://container@account.dfs.core.windows.net/a",
            "az://container@account.dfs.core.windows.net/a",
        ),
    ],
)
def test_a_location_becomes_a_url(typed, url):
    assert normalize_url(typed) == url
    assert normalize_url(url) == url, "a URL means the same place when it comes in again"
    assert pickle.loads(pickle.dumps(open_store(typed))).url == url


def test_a_relative_path_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_store("job").local_root == str(tmp_path / "job")


def test_the_path_of_a_url_is_the_path_typed(tmp_path):
    for name in ("plain", "100%", "a%20b", "with space", "ünïcode"):
        assert local_path(normalize_url(str(tmp_path / name))) == str(tmp_path / name)
    assert local_path("s3://bucket/x") is None


@pytest.mark.parametrize("typed", ["", "nosuch://name/x", "https://x/y", "s3:", "s3://", "s3:///x"])
def test_a_wrong_location_is_refused(typed):
    with pytest.raises(InvalidOptionsError) as caught:
        open_store(typed)
    assert "\n" not in str(caught.value)


def test_a_hint_shows_what_can_be_opened():
    with pytest.raises(InvalidOptionsError, match=r"abfs://.*"):
        open_store("nosuch://name/x")
    with pytest.raises(InvalidOptionsError, match="contain a container; use az://container/path"):
        open_store("az://")


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("s3://bucket/a/b", "a/b"),
        ("s3a://bucket", None),
        ("gs://bucket/a", "a"),
        ("abfs://container@account.dfs.core.windows.net/a/b", "a/b"),
        ("az://container@account.dfs.core.windows.net/a", "a"),
    ],
)
def test_the_client_is_rooted_there(url, prefix):
    assert make_client(normalize_url(url), {"skip_signature": True}, True).prefix == prefix


def test_azure_names_container_and_account():
    client = make_client(normalize_url("abfss://con@acc.dfs.core.windows.net/a"), {}, True)
    assert client.config == {"container_name": "con", "account_name": "acc"}
    client = make_client("az://con/a", {"azure_storage_account_name": "acc"}, True)
    assert client.config == {"container_name": "con", "account_name": "acc"}


URLS = {S3: "s3://bucket/x", GCS: "gs://bucket/x", AZURE: "az://container/x"}


@pytest.mark.parametrize(
    ("kind", "key"), [(kind, key) for kind in SCHEMES for key in kind.option_keys]
)
def test_obstore_knows_every_option_we_let_through(kind, key):
    try:
        make_client(URLS[kind], {key: "true"}, True)
    except Exception as error:  # its value may be nonsense, its name must not be
        assert "is not valid for store" not in str(error)


@pytest.mark.parametrize("key", _CLIENT_KEYS)
def test_obstore_knows_every_client_option_we_let_through(key):
    try:
        make_client("s3://bucket/x", {key: "1s" if "time" in key else "true"}, True)
    except Exception as error:
        assert "Invalid key" not in str(error)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"regoin": "x"}, "did you mean 'region'"),
        ({"aws_acces_key_id": SECRET}, "did you mean 'access_key_id'"),
        ({"fs.s3a.access.key": SECRET}, "Hadoop's options do not apply"),
        ({"bucket": "b"}, "part of the URL"),
        ({"zzz": SECRET}, "stores accept .*allow_http.*region"),
        ({"max_retries": "many"}, "number of attempts"),
        ({"retry_timeout": -1}, "number of seconds"),
    ],
)
def test_an_unknown_option_is_refused_with_a_hint(options, hint):
    with pytest.raises(InvalidOptionsError, match=hint) as caught:
        open_store("s3://bucket/x", storage_options=options)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("location", ["/data/job", "memory://job"])
def test_options_of_a_store_without_options_are_refused(location):
    with pytest.raises(InvalidOptionsError, match="does not take store options; got region"):
        open_store(location, storage_options={"region": "x"})


def test_options_are_those_of_one_kind_of_store():
    with pytest.raises(InvalidOptionsError, match="account_name"):
        open_store("s3://bucket/x", storage_options={"account_name": "x"})


def test_options_reach_the_client():
    options = {
        "AWS_REGION": "eu-west-1",
        "skip_signature": True,
        "timeout": "5s",
        "pool_max_idle_per_host": 4,
        "max_retries": "3",
        "retry_timeout": 20,
    }
    client = make_client("s3://bucket/x", options, True)
    assert client.config == {"bucket": "bucket", "region": "eu-west-1", "skip_signature": "true"}
    assert client.client_options == {"timeout": "5s", "pool_max_idle_per_host": "4"}
    assert client.retry_config["max_retries"] == 0, "the store repeats requests, not its client"
    policy = request_policy("s3://bucket/x", options)
    assert (3, 20) == (policy.max_retries, policy.retry_timeout_s)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"])
def test_a_plain_http_endpoint_needs_no_switch(name, monkeypatch):
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_TIMEOUT", "7s")
    client_options = _arguments("s3://bucket/x", {})["client_options"]
    assert client_options == {"allow_http": True, "timeout": "7s"}, "the environment still counts"


def test_https_stays_https(monkeypatch):
    assert "client_options" not in _arguments("s3://bucket/x", {})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    client_options = _arguments("s3://bucket/x", {"endpoint": "https://127.0.0.1:9"})
    assert "client_options" not in client_options
    refused = _arguments("s3://bucket/x", {"allow_http": False})["client_options"]
    assert refused == {"allow_http": False}, "who says no is not overruled"
    monkeypatch.setenv("AWS_ALLOW_HTTP", "false")
    assert _arguments("s3://bucket/x", {})["client_options"] == {"allow_http": "false"}


def test_a_wrong_value_is_an_error_of_one_line():
    with pytest.raises(OSError, match=r"cannot open store s3://bucket/x: .*boolean") as caught:
        open_store("s3://bucket/x", storage_options={"skip_signature": "maybe"}).head("name")
    assert "\n" not in str(caught.value)


def test_secrets_are_not_shown():
    store = open_store("s3://bucket/x", storage_options={"secret_access_key": SECRET})
    assert SECRET not in repr(store) + store.url
