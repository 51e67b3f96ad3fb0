"""A job whose state and checkpointLocation are files, as a stopped query leaves them, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.locations.batch_records import one_operator
from tests.support.locations.histories import History

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.query_files import StoredQuery, entries_digest
from statelog.core.source_position import SourceLog, position_of
from statelog.store import open_store


class StoredJob(History):
    """A history whose micro-batches are those of a query with one file source."""

    def __init__(self, seed: int | str, root: Path, retained: int = 3) -> None:
        super().__init__(
            seed, open_store(root / "state", storage_options={"fsync": False}), retained
        )
        self.batch_id = -1
        self.folder = root / "query"
        self.query = StoredQuery(open_store(self.folder, storage_options={"fsync": False}))
        self._write("metadata", '{"id":"q"}')

    def micro_batch(self) -> None:
        super().micro_batch()
        self.batch_id += 1

    def record(self) -> BatchRecord:
        """Plan, list and finish the next micro-batch, and return its record."""
        batch = self.batch_id + 1
        line = {"path": f"file:///in/{batch}", "timestamp": batch, "batchId": batch}
        self._write(f"sources/0/{batch}", f"v1\n{json.dumps(line)}\n")
        offsets = [json.dumps({"logOffset": batch})]
        self._write(f"offsets/{batch}", "\n".join(["v1", "{}", *offsets]))
        self._write(f"commits/{batch}", "v1\n{}")
        digest = entries_digest(self.query, "0", batch - 1, batch)
        log = SourceLog(source=0, folder="0", after=batch - 1, upto=batch, digest=digest)
        before = [json.dumps({"logOffset": batch - 1})] if batch else []
        return one_operator(
            schema=self.model.schema.to_json(),
            time_mode="processingtime",
            now_ms=self.now_ms,
            batch_id=batch,
            position=position_of(offsets),
            position_before=position_of(before),
            source_logs=[log],
            source_folders=["0"],
            checkpoint_location=str(self.folder),
        )

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
