"""One Spark Connect server and one session for all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.spark.connect.server import ConnectServer

from statelog.demo.java import prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.support.spark.connect.jobs import ConnectJob


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    folder = tmp_path_factory.mktemp("connect")
    with ConnectServer(folder, folder / "server.log") as running:
        running.wait()
        yield running


@pytest.fixture(scope="module")
def remote(server: ConnectServer) -> "Iterator[SparkSession]":
    prepare_environment()
    from tests.support.spark.connect.sessions import connected

    with connected(server.url) as session:
        yield session


@pytest.fixture
def job(remote: "SparkSession", tmp_path: Path) -> "ConnectJob":
    """A job of two tasks that adds up amounts by key, without input yet."""
    from tests.support.spark.connect.jobs import connect_job

    return connect_job(remote, tmp_path)
