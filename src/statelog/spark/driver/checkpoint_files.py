"""
Open the files of a query's checkpointLocation.

On local disk they are read directly, and elsewhere through Hadoop, whose settings Spark uses for
them.  Spark itself resolves the name that the user gave.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from statelog.checkpoint.source_logs import QueryFiles
from statelog.spark.rows.jvm import JavaObject, jvm_of

LOCAL = "file:"


def checkpoint_files(session: SparkSession, location: str) -> QueryFiles:
    """
    Return the files of a checkpointLocation, or of another folder that Spark writes.

    Args:
        session: The session on which the query is started.
        location: A path or URL, as given to Spark.
    """
    path = jvm_of(session).org.apache.hadoop.fs.Path(location)
    files = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    url = str(files.makeQualified(path).toString())
    return LocalFiles(url) if url.startswith(LOCAL) else _HadoopFiles(session, url, files)


def write_file(session: SparkSession, location: str, name: str, data: bytes) -> None:
    """
    Create a file of a checkpointLocation through Hadoop, as Spark does.

    Args:
        session: The session on which the query is started.
        location: A path or URL, as given to Spark.
        name: The file below it, which does not exist.
        data: Its content.

    Blocks: On the file.
    """
    path = jvm_of(session).org.apache.hadoop.fs.Path(f"{location.rstrip('/')}/{name}")
    files = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    stream = files.create(path, False)
    try:
        stream.write(data)
    finally:
        stream.close()


class LocalFiles:
    """
    A checkpointLocation on local disk.

    Args:
        url: Its URL, which begins with `file:`.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._root = "/" + url[len(LOCAL) :].lstrip("/")

    @property
    def url(self) -> str:
        return self._url

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        try:
            with open(os.path.join(self._root, name), "rb") as file:
                if tail is not None:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(max(0, size - tail))
                return file.read()
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> Sequence[str]:
        try:
            return os.listdir(os.path.join(self._root, folder))
        except FileNotFoundError:
            return ()


class _HadoopFiles:
    """A checkpointLocation on any of Hadoop's file systems."""

    def __init__(self, session: SparkSession, url: str, files: JavaObject) -> None:
        self._jvm = jvm_of(session)
        self._url = url
        self._files = files

    @property
    def url(self) -> str:
        return self._url

    def _path(self, name: str) -> JavaObject:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._url}/{name}" if name else self._url)

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        path = self._path(name)
        try:
            stream = self._files.open(path)
        except Py4JJavaError as error:
            failed: JavaObject = error.java_exception
            if failed.getClass().getSimpleName() == "FileNotFoundException":
                return None
            raise
        try:
            if tail is not None:
                stream.seek(max(0, self._files.getFileStatus(path).getLen() - tail))
            data: bytes = self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)
            return bytes(data)
        finally:
            stream.close()

    def names(self, folder: str) -> Sequence[str]:
        path = self._path(folder)
        if not self._files.exists(path):
            return ()
        return [status.getPath().getName() for status in self._files.listStatus(path)]
