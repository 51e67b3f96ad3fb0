"""
A data source of the name "delta" that keeps Delta's promise for its writer's options.

The package of Delta for Spark is a jar that tests cannot fetch.  This source writes real Delta
tables by the package deltalake (delta-rs), and treats the options `txnAppId` and `txnVersion` as
Delta does: the id of the transaction is in the same commit as the rows, and a version that the table
has is skipped.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType


@dataclass
class Rows(WriterCommitMessage):
    """The rows of one task."""

    batches: list[pa.RecordBatch]


class TransactionWriter(DataSourceArrowWriter):
    """Writes the rows of a micro-batch and its transaction in one commit."""

    def __init__(self, options: Any) -> None:
        self.path = options["path"]
        self.application = options.get("txnAppId")
        self.version = options.get("txnVersion")
        self.metadata = {"userMetadata": options.get("userMetadata", "")}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Rows:
        return Rows(list(iterator))

    def commit(self, messages: list[Any]) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

        batches = [batch for message in messages for batch in message.batches]
        if not batches:
            return
        properties = None
        if self.application is not None:
            version = int(self.version)
            if DeltaTable.is_deltatable(self.path):
                known = DeltaTable(self.path).transaction_version(self.application)
                if known is not None and known >= version:
                    return
            properties = CommitProperties(
                custom_metadata=self.metadata,
                app_transactions=[Transaction(self.application, version)],
            )
        table = pa.Table.from_batches(batches)
        write_deltalake(self.path, table, mode="append", commit_properties=properties)
        written = DeltaTable(self.path)
        if written.version() % 3 == 2:
            written.create_checkpoint()  # as Delta does after every tenth commit


class DeltaStandIn(DataSource):
    """A source with the name of Delta's."""

    @classmethod
    def name(cls) -> str:
        return "delta"

    def writer(self, schema: StructType, overwrite: bool) -> TransactionWriter:
        return TransactionWriter(self.options)
