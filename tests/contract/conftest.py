"""One server of each kind for all tests of a test process, and a bucket for each test."""

import itertools
import os

import pytest
from tests.support.servers.real_stores import AzureServer, azure_server, seaweedfs_server
from tests.support.servers.server_process import S3Server, moto_server

BUCKETS = itertools.count()


@pytest.fixture(scope="session")
def s3_server():
    with moto_server() as server:
        yield server


@pytest.fixture(scope="session")
def seaweedfs():
    with seaweedfs_server() as server:
        yield server


@pytest.fixture(scope="session")
def azurite():
    with azure_server() as server:
        yield server


@pytest.fixture
def azure_container(azurite: AzureServer) -> str:
    container = f"container-{os.getpid()}-{next(BUCKETS)}"
    azurite.make_container(container)
    return container


@pytest.fixture
def s3_bucket(s3_server: S3Server) -> str:
    bucket = f"bucket-{os.getpid()}-{next(BUCKETS)}"
    s3_server.make_bucket(bucket)
    return bucket


@pytest.fixture
def s3_environment(s3_server: S3Server, monkeypatch) -> S3Server:
    """The server named by environment variables only."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server
