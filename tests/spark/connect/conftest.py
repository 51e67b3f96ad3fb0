"""One Spark Connect server and one session for all tests of this folder."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from statelog.demo.connect_server import ConnectServer
from statelog.demo.java import prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    prepare_environment()
    folder = tmp_path_factory.mktemp("connect")
    with ConnectServer(folder, folder / "server.log") as running:
        running.wait()
        yield running


@pytest.fixture(scope="module")
def remote(server: ConnectServer) -> "Iterator[SparkSession]":
    """Return a session; while it is open, PySpark's functions are those of Connect."""
    from pyspark.sql.connect.session import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        # As SparkSession.builder does, which refuses a second kind of session in one process.
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        session = SparkSession.builder.remote(server.url).create()
        try:
            yield session
        finally:
            session.client.close()
