"""What people and accidents do to the files of a checkpointLocation."""

import shutil
from pathlib import Path

from pyspark.sql import DataFrame
from tests.support.spark.streams import BatchSource


class InTime(BatchSource):
    """One file a micro-batch, with a watermark."""

    def frame(self) -> DataFrame:
        frame = super().frame().selectExpr("*", "timestamp_millis(amount) AS at")
        return frame.withWatermark("at", "1 day")


class AnySize(BatchSource):
    """A micro-batch takes all files there are."""

    def frame(self) -> DataFrame:
        return self.spark.readStream.schema(self.schema).parquet(str(self.folder))


class AnySizeInTime(InTime, AnySize):
    """The same, with a watermark."""


def newest(folder: Path) -> int:
    """Return the newest number among a folder's files."""
    return max(number(path.name) for path in folder.iterdir() if number(path.name) >= 0)


def number(name: str) -> int:
    stem = name.removesuffix(".compact")
    return int(stem) if stem.isdigit() else -1


def remove(folder: Path, *numbers: int) -> None:
    """Delete files by number, with their checksums."""
    for path in list(folder.iterdir()):
        if number(path.name.removeprefix(".").removesuffix(".crc")) in numbers:
            path.unlink()


def forget_newest_batch(query: Path, *, sources: bool = False) -> int:
    """Delete the newest of offsets/ and commits/, and of the first source's log if wanted."""
    batch = newest(query / "offsets")
    remove(query / "offsets", batch)
    remove(query / "commits", batch)
    if sources:
        remove(query / "sources" / "0", newest(query / "sources" / "0"))
    return batch


def cut_short(folder: Path, name: int) -> None:
    """Leave an empty file, as a power failure may."""
    (folder / str(name)).write_bytes(b"")
    (folder / f".{name}.crc").unlink(missing_ok=True)


def replace(folder: Path, backup: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)


def planned(query: Path) -> int:
    """Return the number of micro-batches that Spark has planned."""
    return len(list((query / "offsets").glob("[0-9]*")))
