"""A query of two sources and its location, without Spark."""

import json
from pathlib import Path
from typing import Any

from tests.support.locations.batch_records import one_operator
from tests.support.locations.checkpoints import ManualClock, log_inline, run_checkpoint, started

import statelog
from statelog.checkpoint.query_files import StoredQuery, entries_digest
from statelog.core.source_position import SourceLog, position_of
from statelog.extensions.operations.rewind import apply_rewind, plan_rewind
from statelog.format.checkpoint_metadata import OUTPUT_TAG
from statelog.model import KeyGroupRange, TaskStateSnapshot
from statelog.store import ObjectStore, open_store

ALL = KeyGroupRange(0, 7)


class Query:
    """
    A query of a file source and of Kafka, with a source of statelog's own behind them.

    Its batch N lists one file in entry N of the first source's log; `idle` batches list none.
    """

    def __init__(self, root: Path, *, retained: int = 4, idle: tuple[int, ...] = ()) -> None:
        self.folder = root / "query"
        self.retained = retained
        self.idle = idle
        self.put("metadata", '{"id":"q"}')
        self.state: ObjectStore = open_store(str(root / "state"))
        self.stored = StoredQuery(open_store(str(self.folder)))
        self.driver = started(self.state, retained=retained)
        self.entry = -1

    @property
    def root(self) -> Path:
        return self.folder.parent

    def tags(self) -> list[str]:
        """Return the names of the tags of the state."""
        return [tag.name for tag in statelog.tags(self.root / "state")]

    def put(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / f".{path.name}.crc").write_text("crc")

    def offsets(self) -> list[str]:
        return [json.dumps({"logOffset": self.entry}), json.dumps({"topic": {"0": self.entry}})]

    def run(self, first: int, last: int) -> None:
        for batch in range(first, last + 1):
            before = self.offsets() if batch else []
            if batch not in self.idle:
                self.entry += 1
                line = {"path": f"file:///in/{batch}", "timestamp": batch, "batchId": self.entry}
                self.put(f"sources/0/{self.entry}", f"v1\n{json.dumps(line)}\n")
                self.put("sources/1/0", "v1\nwhere Kafka began")
            self.put(f"offsets/{batch}", "\n".join(["v1", "{}", *self.offsets(), str(batch)]))
            if batch not in self.idle:
                self.commit(batch, before)
            self.put(f"commits/{batch}", "v1\n{}")

    def commit(self, batch: int, before: list[str]) -> None:
        digest = entries_digest(self.stored, "0", self.entry - 1, self.entry)
        log: dict[str, Any] = {
            "source": 0,
            "folder": "0",
            "after": self.entry - 1,
            "upto": self.entry,
        }
        record = one_operator(
            query_id="q",
            batch_id=batch,
            position=position_of(self.offsets()),
            position_before=position_of(before),
            source_logs=[SourceLog(**log, digest=digest)],
            source_folders=["0", "1"],
            checkpoint_location=str(self.folder),
        )
        changes = TaskStateSnapshot(ALL, log_inline(ALL, [[(1, b"%d" % batch)]]))
        run_checkpoint(
            self.driver,
            self.driver.next_checkpoint_id,
            [changes],
            properties=record.to_properties(),
            sections={OUTPUT_TAG: b"rows of %d" % batch},
        )

    def names(self, folder: str) -> list[str]:
        return sorted(path.name for path in (self.folder / folder).iterdir())

    def rewind(self, to: int) -> int:
        plan = plan_rewind(self.stored, self.state, to)
        return apply_rewind(self.stored, self.state, plan, ManualClock())

    def everything(self) -> dict[str, bytes]:
        root = self.folder.parent
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file()
        }
