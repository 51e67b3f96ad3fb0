"""
Access files through Hadoop, with Spark's settings and credentials.

Spark itself resolves the name that the user gave.  Files on local disk are read directly.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from statelog.checkpoint.query_files import QueryFiles
from statelog.spark.jvm.gateway import JavaObject, jvm_of, streaming_class

LOCAL: Final = "file:"


def checkpoint_files(session: SparkSession, location: str) -> QueryFiles:
    """Return the files of a checkpointLocation, or of a different folder, given its Spark path."""
    folder = HadoopFolder(session, location)
    return LocalFiles(folder.url) if folder.url.startswith(LOCAL) else folder


def write_file(session: SparkSession, location: str, name: str, data: bytes) -> None:
    """Create a file of a checkpointLocation through Hadoop, as Spark does."""
    HadoopFolder(session, location.rstrip("/")).create(name, data)


def temporary_folder(session: SparkSession) -> str:
    """Create a folder on the driver's disk, which the JVM deletes when it exits."""
    jvm = jvm_of(session)
    root = jvm.java.lang.System.getProperty("java.io.tmpdir")
    path: str = jvm.org.apache.spark.util.Utils.createTempDir(root, "temporary").getCanonicalPath()
    return path


class LocalFiles:
    """A checkpointLocation on local disk, whose *url* starts with `file:`."""

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


class HadoopFolder:
    """A folder on any Hadoop file system, named as in Spark."""

    def __init__(self, session: SparkSession, location: str) -> None:
        self._session = session
        self._jvm = jvm_of(session)
        self._conf: JavaObject = session._jsparkSession.sessionState().newHadoopConf()
        folder: JavaObject = self._jvm.org.apache.hadoop.fs.Path(location)
        self._files: JavaObject = folder.getFileSystem(self._conf)
        self._url = str(self._files.makeQualified(folder).toString())

    @property
    def url(self) -> str:
        """The URL of the folder, with its scheme."""
        return self._url

    def _path(self, name: str) -> JavaObject:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._url}/{name}" if name else self._url)

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        """Read the end of a file, or the whole file; return None if the file does not exist."""
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

    def names(self, folder: str = "") -> Sequence[str]:
        """List the names in a subfolder; the list is empty if the folder does not exist."""
        path = self._path(folder)
        if not self._files.exists(path):
            return ()
        return [status.getPath().getName() for status in self._files.listStatus(path)]

    def exists(self, name: str) -> bool:
        """Return whether a file or folder exists."""
        return bool(self._files.exists(self._path(name)))

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""
        self._files.delete(self._path(name), False)

    def create(self, name: str, data: bytes) -> None:
        """Create a file, which must not exist yet."""
        stream = self._files.create(self._path(name), False)
        try:
            stream.write(data)
        finally:
            stream.close()

    def put(self, folder: str, name: str, text: str, *, overwrite: bool) -> None:
        """Write ASCII text atomically, in the way Spark writes its checkpoints."""
        managers = streaming_class(self._session, "CheckpointFileManager", "checkpointing")
        manager = managers.create(self._path(""), self._conf)
        manager.mkdirs(self._path(folder))
        stream = manager.createAtomic(self._path(f"{folder}/{name}"), overwrite)
        try:
            stream.writeBytes(text)
        except BaseException:
            stream.cancel()
            raise
        stream.close()
