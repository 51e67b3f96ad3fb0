"""Readers of random courses: what follows a location, and remembers where it was."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from tests.support.locations.histories import Rows, rows_of
from tests.support.locations.published_tables import rows_of_table

import statelog
from statelog.errors import CheckpointError, UsageError
from statelog.extensions.publish.publisher import TablePublisher, publisher
from statelog.extensions.read.replica import Replica
from statelog.extensions.spark_source.source import StateSource
from statelog.model import CheckpointPosition, CompletedCheckpoint
from statelog.state.schema import TIMERS_NAME
from statelog.store import open_location

if TYPE_CHECKING:
    from tests.campaigns.histories.courses import Course

_BEHIND = ("not_newer", "subsumed", "not_found")
"""Reasons of a refusal to go on from a remembered checkpoint."""


class Reader(Protocol):
    def check(self, course: Course, newest: CompletedCheckpoint) -> None:
        """Come to the newest checkpoint, or to a refusal by name; compare with the model."""

    def close(self) -> None: ...


class ReplicaReader:
    """A replica, which is made again where the path of the location changes."""

    def __init__(self) -> None:
        self._replica: Replica | None = None
        self._path: Path | None = None

    def check(self, course: Course, newest: CompletedCheckpoint) -> None:
        if self._path != course.path:
            self.close()
        if self._replica is None:
            store = open_location(str(course.path), options={"fsync": False})
            self._replica, self._path = Replica(store, interval_s=None), course.path
        elif course.rng.random() < 0.7:
            try:
                self._replica.refresh()
            except CheckpointError as error:
                course.counts[f"replica: {error.reason}"] += 1
                return
        else:
            return
        model, now_ms = course.model_of(newest)
        for variable in self._replica.variables():
            rows = rows_of(self._replica.table(variable.name, now_ms=now_ms))
            expected = model.rows(variable.name, now_ms)
            assert expected == rows, f"the replica differs: {variable.name}"
            course.rows["replica"] += len(rows)

    def close(self) -> None:
        if self._replica is not None:
            self._replica.close()
        self._replica = None


class Copy:
    """A copy of the timers that is made of changes."""

    def __init__(self) -> None:
        self.rows: dict[int, Any] = {}

    def apply(self, changes: Iterable[Mapping[str, Any]]) -> int:
        """Apply changes of any order; return how many."""
        ordered = sorted(changes, key=lambda row: row["checkpoint_id"])
        for row in ordered:
            if row["after.$timers"] is None:
                self.rows.pop(row["key.k"], None)
            else:
                self.rows[row["key.k"]] = row["after.$timers"]
        return len(ordered)

    def check(self, name: str, expected: Rows) -> None:
        """Compare with the model."""
        assert set(expected) == set(self.rows), f"the copy of {name} has other keys"
        for key, rows in expected.items():
            assert len(rows) == len(self.rows[key]), f"the copy of {name} has other timers"


class FeedReader:
    """A copy that follows the feed from the position it remembers."""

    def __init__(self) -> None:
        self._position: str | None = None
        self._copy = Copy()

    def check(self, course: Course, newest: CompletedCheckpoint) -> None:
        if course.rng.random() < 0.3:
            return
        with statelog.open(course.path) as state:
            try:
                batches = list(state.feed(self._position, variable=TIMERS_NAME))
            except CheckpointError as error:
                assert error.reason in _BEHIND, error
                course.counts[f"feed: {error.reason}"] += 1
                self._position, self._copy = None, Copy()
                batches = list(state.feed(None, variable=TIMERS_NAME))
        course.rows["feed"] += self._copy.apply(
            row for batch in batches for row in batch.to_pylist()
        )
        self._position = newest.position.to_text()
        model, now_ms = course.model_of(newest)
        self._copy.check("the feed", model.rows(TIMERS_NAME, now_ms))

    def close(self) -> None: ...


class SourceReader:
    """A query that reads the Spark source; it runs a planned micro-batch again as planned."""

    def __init__(self) -> None:
        self._begun = 0
        self._begin()

    def _begin(self) -> None:
        """Begin with a new checkpointLocation."""
        self._begun += 1
        self._offsets: list[str] = []
        """What Spark stores: JSON, of the begin and of the end of each micro-batch."""
        self._finished = 0
        self._copy = Copy()
        self._options: dict[str, str] | None = None

    def check(self, course: Course, newest: CompletedCheckpoint) -> None:
        if course.rng.random() < 0.3:
            return
        try:
            self._run(course)
        except CheckpointError as error:
            assert error.reason in _BEHIND, error
            course.counts[f"source: {error.reason}"] += 1
            self._begin()
            self._run(course)
        self._compare(course)

    def _run(self, course: Course) -> None:
        """Run the query for some micro-batches; it may be stopped after the plan of one."""
        if self._options is None:
            self._options = self._chosen(course.rng)
        source = StateSource({"path": str(course.path), **self._options})
        stream = source.stream(source.schema())
        if not self._offsets:
            self._offsets.append(json.dumps(stream.initialOffset()))
        for _ in range(5):
            if len(self._offsets) == self._finished + 1:
                begin = json.loads(self._offsets[-1])
                limit = stream.getDefaultReadLimit()
                end = stream.latestOffset(begin, limit)  # type: ignore[call-arg]
                if end == begin:
                    return
                self._offsets.append(json.dumps(end))
                if course.rng.random() < 0.2:
                    return  # it is run again as planned, by the next run
            begin, end = map(json.loads, self._offsets[self._finished :])
            rows: list[dict[str, Any]] = []
            for part in stream.partitions(begin, end):
                for batch in stream.read(part):
                    rows += _plain(batch)  # type: ignore[arg-type]
            course.rows["source"] += self._copy.apply(rows)
            self._finished += 1
            stream.commit(end)

    def _chosen(self, rng: random.Random) -> dict[str, str]:
        options = {"view": "changes", "variable": TIMERS_NAME}
        if rng.random() < 0.5:
            options["reader"] = f"copy-{self._begun}-{rng.randrange(10**9)}"
        if rng.random() < 0.4:
            options["maxCheckpointsPerTrigger"] = str(rng.randrange(1, 3))
        return options

    def _compare(self, course: Course) -> None:
        """Compare with the model of the checkpoint up to which was read."""
        if not self._finished:
            return
        position = CheckpointPosition.from_text(
            json.loads(self._offsets[self._finished])["position"]
        )
        model, now_ms = course.models[position.location_id, position.attempt]
        self._copy.check("the source", model.rows(TIMERS_NAME, now_ms))

    def close(self) -> None: ...


def _plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows by the names that the feed has: Spark's columns are structs."""
    rows = []
    for row in batch.to_pylist():
        flat = {"checkpoint_id": row["checkpoint_id"], "key.k": row["key"]["k"]}
        after = row["after"]
        flat["after.$timers"] = None if after is None else after["$timers"]
        rows.append(flat)
    return rows


class PublishedReader:
    """
    A published table, of one publisher that lives on or of a new one each time.

    After a refusal the operator publishes to another table, as the error says.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder, self._kind = folder, kind
        self._tables = 0
        self._publisher: TablePublisher | None = None
        self._new_table()

    def _new_table(self) -> None:
        self.close()
        self._tables += 1
        place = self._folder / f"table {self._tables}"
        place.mkdir(parents=True)
        if self._kind == "Delta":
            self._target: dict[str, Any] = {"delta": place / "delta"}
            return
        self._options = {
            "type": "sql",
            "uri": f"sqlite:///{place}/catalog.db",
            "warehouse": f"file://{place}/warehouse",
        }
        self._target = {"iceberg": "test.jobs.totals", "catalog_options": self._options}

    def check(self, course: Course, newest: CompletedCheckpoint) -> None:
        if course.rng.random() < 0.3:
            return
        if course.rng.random() < 0.4:
            self.close()
        try:
            self._publish(course)
        except (CheckpointError, UsageError) as error:
            reason = error.reason if isinstance(error, CheckpointError) else "other location"
            assert reason in (*_BEHIND, "other location"), error
            course.counts[f"published {self._kind}: {reason}"] += 1
            self._new_table()
            self._publish(course)
        model, now_ms = course.model_of(newest)
        names = [variable.name for variable in self._variables(course)]
        expected = {name: model.rows(name, now_ms) for name in names}
        rows = self._rows()
        assert expected == rows_of_table(rows, expected), f"the {self._kind} table differs"
        course.rows[f"published {self._kind}"] += rows.num_rows

    def _publish(self, course: Course) -> None:
        if self._publisher is None or self._path != course.path:
            self.close()
            self._path = course.path
            self._publisher = publisher(course.path, **self._target)
        self._publisher.refresh()

    def _variables(self, course: Course) -> Iterable[Any]:
        with statelog.open(course.path) as state:
            return state.reader().variables()

    def _rows(self) -> pa.Table:
        if self._kind == "Delta":
            import deltalake

            table = deltalake.DeltaTable(self._target["delta"])
            query = deltalake.QueryBuilder().register("t", table)
            return pa.table(query.execute("select * from t"))
        from pyiceberg.catalog import load_catalog

        return load_catalog("test", **self._options).load_table("jobs.totals").scan().to_arrow()

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
        self._publisher = None
