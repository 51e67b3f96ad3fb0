"""
The sink for Delta tables: Spark's batch writer, with one transaction per micro-batch.

Delta skips a transaction of an application if the table has the same or a later version of it, and
does not say so.  So the version has the timeline and the number of the micro-batch, the application
has the query and the state location, and the first micro-batch of a run is compared with the
transactions in the log of the table.  A driver from before a rewind has lower versions: Delta skips
its rows, whenever they come.
Source: Delta Lake's writer options txnAppId, txnVersion and userMetadata; Delta transaction log
protocol, transaction identifiers, commit provenance and checkpoints.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import CheckpointError, UsageError
from statelog.model import JsonObject
from statelog.spark.query.delivery import Sink, delivered_batch, query_name
from statelog.spark.rows.spark_versions import condition_of
from statelog.spark.stream.sinks.simple import Target, append, batch_writer

_log = logging.getLogger("statelog.spark")

_DELTA: Final = "delta"
_APPLICATION: Final = "txnAppId"
_VERSION: Final = "txnVersion"
_METADATA: Final = "userMetadata"
_SEPARATOR: Final = "/"
_LOG: Final = "_delta_log"
_BEFORE_MAX: Final = 100
"""Commits before the newest checkpoint of the log that are read for their texts."""
_MISSING: Final = ("PATH_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND")
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(
    r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-f-]{36})?\.(parquet|json)"
)


@dataclass(frozen=True, slots=True)
class Transaction:
    """The newest transaction of an application; *metadata* is user text from its commit."""

    application: str
    number: int
    metadata: str = ""


class DeltaSink:
    """
    Appends each micro-batch to a Delta table exactly once.

    It can be pickled: on Spark Connect it runs in another process.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._has_looked = False

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write a micro-batch, unless the table already contains it."""
        batch = delivered_batch(frame, batch_id)
        application = _Application(self._target.option(_APPLICATION, None), frame, batch)
        if not self._has_looked:
            if self._has(frame.sparkSession, application, batch):
                _log.info("batch %d of %s is already written and is skipped", batch_id, application)
                return
            self._has_looked = True
        options = {_METADATA: batch.to_text(), **self._target.options()}
        options |= {_APPLICATION: application.name, _VERSION: batch.number}
        append(frame, self._target, options)

    def _has(self, session: SparkSession, application: _Application, batch: DeliveredBatch) -> bool:
        """Return whether the table already contains a micro-batch."""
        target = self._target.table or str(self._target.option("path", ""))
        folder = _folder(session, self._target)
        if folder is None:
            return False
        skips = False
        for transaction in transactions(session, folder):
            last = application.batch_of(transaction, batch)
            if last is None:
                continue
            if batch.is_written(last, target=target):
                return True
            is_same = transaction.application == application.name
            skips |= is_same and transaction.number >= batch.number
        if skips:
            raise CheckpointError(
                f"{target} contains a later transaction of {application.name!r} than {batch.number}, so Delta would "
                f"skip batch {batch.batch_id}: the query has a new state location. Omit the option "
                f"{_APPLICATION}, or set a different application",
                reason="gap",
                batch_id=batch.batch_id,
            )
        return False


def written_by_spark(target: Target, source: str) -> Sink:
    """
    Return the sink for a format that Spark's batch writer supports.

    Delta is written once, others at least once.
    """
    return DeltaSink(target) if source == _DELTA else batch_writer(target, source)


class _Application:
    """The name under which Delta records the transactions of a query and its state location."""

    def __init__(self, chosen: object, frame: DataFrame, batch: DeliveredBatch) -> None:
        self._query = None if chosen else query_name(frame)
        location = f"{_SEPARATOR}{batch.location_id}" if batch.location_id else ""
        self.name = str(chosen) if chosen else f"{self._query}{location}"

    def __str__(self) -> str:
        return self.name

    def batch_of(self, transaction: Transaction, batch: DeliveredBatch) -> DeliveredBatch | None:
        """
        Return the micro-batch of a transaction that this query made, in any state location.

        Else None.
        """
        query, _, location = transaction.application.partition(_SEPARATOR)
        if transaction.application == self.name:
            location = batch.location_id
        elif query != self._query:
            return None
        last = DeliveredBatch.from_number(transaction.number, location)
        try:
            recorded = DeliveredBatch.from_text(transaction.metadata, where=_METADATA)
        except UsageError:  # the user's own text
            return last
        return recorded if recorded.number == transaction.number else last


def _folder(session: SparkSession, target: Target) -> str | None:
    """Return the folder of a table, or None if the table does not exist."""
    path = target.option("path", None)
    if target.table is None:
        return None if path is None else str(path)
    try:
        rows = session.sql(f"DESCRIBE TABLE EXTENDED {target.table}").collect()
    except AnalysisException as error:
        if condition_of(error) not in _MISSING:
            raise
        return None if path is None else str(path)
    folders = [row[1] for row in rows if row[0] == "Location"]
    if not folders:
        _log.warning(
            "the catalog does not say where the table %s is stored, so its history cannot be read: if you rewind "
            "this query, Delta skips rows without an error",
            target.table,
        )
        return None
    return str(folders[-1])


def transactions(session: SparkSession, folder: str) -> Sequence[Transaction]:
    """Return the newest transaction of each application in a Delta table, if it exists."""
    log = f"{folder.rstrip('/')}/{_LOG}"
    try:
        files = session.read.format("binaryFile").load(log).select("path").collect()
    except AnalysisException as error:
        if condition_of(error) in _MISSING:
            return ()
        raise
    paths = {str(row[0]).rpartition("/")[2]: str(row[0]) for row in files}
    version, names = _newest_checkpoint(paths)
    commits = sorted(filter(_COMMIT.fullmatch, paths))
    # A checkpoint lacks the users' texts; the commits before it have them, while they are stored.
    before = [name for name in commits if int(name[:20]) <= version][-_BEFORE_MAX:]
    after = [name for name in commits if int(name[:20]) > version]
    stored = {
        (transaction.application, transaction.number): transaction
        for transaction in _of_commits(session, [paths[name] for name in before])
    }
    newest: dict[str, Transaction] = {}
    for transaction in _of_checkpoint(session, [paths[name] for name in names]):
        key = transaction.application, transaction.number
        newest[transaction.application] = stored.get(key, transaction)
    for transaction in _of_commits(session, [paths[name] for name in after]):
        newest[transaction.application] = transaction
    return tuple(newest.values())


def _newest_checkpoint(names: Iterable[str]) -> tuple[int, Sequence[str]]:
    """Return the version and files of the newest complete checkpoint; the version is -1 if none."""
    checkpoints: dict[tuple[int, str], list[str]] = {}
    for name in names:
        match = _CHECKPOINT.fullmatch(name)
        if match is not None:
            number, parts, _ = match.groups()
            checkpoints.setdefault((int(number), parts or name), []).append(name)
    whole = [
        (version, files)
        for (version, parts), files in checkpoints.items()
        if not parts.isdecimal() or len(files) == int(parts)
    ]
    return max(whole, default=(-1, []))


def _of_checkpoint(session: SparkSession, paths: Sequence[str]) -> Iterator[Transaction]:
    if paths and paths[0].endswith(".json"):
        yield from _of_commits(session, paths)
    elif paths:
        actions = session.read.parquet(*paths)
        if "txn" in actions.columns:
            rows = actions.where("txn is not null").select("txn.appId", "txn.version").collect()
            yield from (Transaction(str(row[0]), int(row[1])) for row in rows)


def _of_commits(session: SparkSession, paths: Sequence[str]) -> Iterator[Transaction]:
    if not paths:
        return
    lines = session.read.format("text").load(list(paths))
    lines = lines.select(col("_metadata.file_name").alias("name"), "value")
    lines = lines.where(col("value").rlike(r'^\s*\{\s*"(txn|commitInfo)"'))
    actions: dict[str, list[JsonObject]] = {}
    for name, line in lines.collect():
        actions.setdefault(name, []).append(json.loads(line))
    for _, commit in sorted(actions.items()):
        infos = [action["commitInfo"] for action in commit if "commitInfo" in action]
        metadata = str(infos[0].get(_METADATA) or "") if infos else ""
        for action in commit:
            if "txn" in action:
                txn = action["txn"]
                yield Transaction(str(txn["appId"]), int(txn["version"]), metadata)
