"""Sessions of Spark Connect in the process of the tests, which has a classic one too."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from pyspark.sql.connect.session import SparkSession


@contextmanager
def connected(url: str) -> Iterator[SparkSession]:
    """Open a session; while it is open, PySpark's functions are those of Connect."""
    with pytest.MonkeyPatch.context() as patch:
        # As SparkSession.builder does, which refuses a second kind of session in one process.
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        session = SparkSession.builder.remote(url).create()
        # Spark's own transformWithState asks for it, and finds the first session of all, closed or not.
        patch.setattr(SparkSession, "_default_session", session)
        try:
            yield session
        finally:
            with suppress(Exception):  # the server may be dead
                session.client.close()
