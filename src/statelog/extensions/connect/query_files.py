"""
Read the files of a checkpointLocation through Spark.

A client may have neither the server's file systems nor its credentials, so it reads them as Spark
reads data.  In the worker, which runs on the driver's host, files on local disk are read directly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from statelog.checkpoint.query_files import QueryFiles
from statelog.spark.jvm.files import LOCAL, LocalFiles

_NOT_FOUND: Final = "PATH_NOT_FOUND"
_METADATA: Final = "metadata"
_GLOB: Final = re.compile(r"([*?\[\]{}\\])")


class SparkFiles:
    """
    A checkpointLocation in any file system of the server, named as for Spark.

    Hidden files, such as those with Hadoop's checksums, are not found.
    """

    def __init__(self, session: SparkSession, location: str) -> None:
        self._session = session
        self._url = location.rstrip("/")

    @property
    def url(self) -> str:
        """The location."""
        return self._url

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        """Return a file, or its last *tail* bytes; None if it does not exist."""
        contents = self._column("content", _GLOB.sub(r"\\\1", f"{self._url}/{name}"))
        if not contents:
            return None
        data: bytes = contents[0]
        return data if tail is None else data[-tail:]

    def names(self, folder: str) -> Sequence[str]:
        """Return the names of the files and folders in a folder."""
        paths = self._column("path", _GLOB.sub(r"\\\1", f"{self._url}/{folder}") + "/*")
        below = (str(path).rpartition(f"/{folder}/")[2] for path in paths)
        return sorted({name.partition("/")[0] for name in below})

    def qualified(self) -> str | None:
        """Return the location as Spark resolves it; None before a query ran."""
        paths = self._column("path", _GLOB.sub(r"\\\1", f"{self._url}/{_METADATA}"))
        return str(paths[0]).rpartition("/")[0] if paths else None

    def _column(self, column: str, path: str) -> list[Any]:
        try:
            frame: DataFrame = self._session.read.format("binaryFile").load(path)
            values: list[Any] = frame.select(column).toArrow().column(0).to_pylist()
        except AnalysisException as error:
            if _NOT_FOUND in str(error):
                return []
            raise
        return values


def files_in_worker(session: SparkSession, location: str) -> QueryFiles:
    """Return the files of a running query, in the process of its micro-batches."""
    files = SparkFiles(session, location)
    url = files.qualified()
    if url is not None and url.startswith(LOCAL):
        local = LocalFiles(url)
        if local.read(_METADATA) is not None:
            return local
    return files if url is None else SparkFiles(session, url)
