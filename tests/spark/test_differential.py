"""Random programs of state calls do the same here as on Spark's own transformWithState."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from tests.spark.streams import BatchSource, Job, run_on_spark, workers_get_by_value

from statelog.spark import MaterializationPolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

workers_get_by_value(__name__)

OUTPUT = "key string, at string, seen string"
KEYS = 220
TASKS = (2, 5, 1)  # restarts in between, so that state is read back from the store
SNAPSHOTS = MaterializationPolicy(min_log_bytes=1, log_to_snapshot_ratio=0.01, max_log_handles=4)
SEED = 20_110_109
NEVER_MS = 4_000_000_000_000
HOUR_MS = 3_600_000


class Interpreter(StatefulProcessor):
    """Does what the rows say, and yields what it saw."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.states: dict[str, Any] = {}
        for suffix, ttl in (("", None), ("_long", HOUR_MS), ("_short", 1)):
            self.states["value" + suffix] = handle.getValueState(
                "value" + suffix, "number bigint, text string", ttl
            )
            self.states["list" + suffix] = handle.getListState("list" + suffix, "number int", ttl)
            self.states["map" + suffix] = handle.getMapState(
                "map" + suffix, "name string, part int", "amount double", ttl
            )

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.at):
            seen = [self.do(*call) for call in json.loads(row.program)]
            yield Row(key=key[0], at=str(row.at), seen=json.dumps(seen))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        seen = [self.do("value", "get"), self.do("timers", "list")]
        self.do("list", "appendValue", [at])
        yield Row(key=key[0], at=f"timer {at}", seen=json.dumps(seen))

    def do(self, name: str, method: str, *arguments: Any) -> Any:
        if name == "timers":
            if method == "list":
                return sorted(self.handle.listTimers())
            getattr(self.handle, method)(*arguments)
            return None
        arguments = tuple(tupled(argument) for argument in arguments)
        seen = getattr(self.states[name], method)(*arguments)
        if method in ("iterator", "keys", "values"):
            return sorted(map(plain, seen), key=repr)  # the order is each store's own
        return plain(list(seen)) if method == "get" and name.startswith("list") else plain(seen)


def tupled(value: Any) -> Any:
    """Return what a processor passes: tuples, and lists of them."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        return [tuple(part) for part in value]
    return tuple(value)


def plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    return value


def program(rng: random.Random) -> list[list[Any]]:
    return [call(rng) for _ in range(rng.randint(1, 12))]


def call(rng: random.Random) -> list[Any]:
    suffix = rng.choice(["", "", "_long", "_short"])

    def amount() -> list[float]:
        return [rng.choice([0.0, -1.5, 2.25, None])]

    def name() -> list[Any]:
        return [rng.choice(["a", "b", "ü", ""]), rng.choice([-1, 0, 1])]

    match rng.choice(["value", "list", "map", "timers"]):
        case "value":
            new = [rng.choice([None, -(2**63), 2**63 - 1, 7]), rng.choice([None, "", "x", "naïve"])]
            calls = [["exists"], ["get"], ["get"], ["clear"], ["update", new], ["update", new]]
            return ["value" + suffix, *rng.choice(calls)]
        case "list":
            some = [[rng.choice([None, 1, -(2**31), 2**31 - 1])] for _ in range(rng.randint(1, 3))]
            calls = [
                ["exists"],
                ["get"],
                ["get"],
                ["clear"],
                ["put", some],
                ["appendValue", some[0]],
                ["appendList", some],
            ]
            return ["list" + suffix, *rng.choice(calls)]
        case "map":
            calls = [
                ["exists"],
                ["getValue", name()],
                ["containsKey", name()],
                ["updateValue", name(), amount()],
                ["updateValue", name(), amount()],
                ["updateValue", name(), amount()],
                ["iterator"],
                ["keys"],
                ["values"],
                ["removeKey", name()],
                ["clear"],
            ]
            return ["map" + suffix, *rng.choice(calls)]
        case _:  # at once, or never: what the clocks of two runs agree on
            at = rng.choice([rng.randint(1, 5), NEVER_MS + rng.randint(1, 3)])
            calls = [["list"], ["registerTimer", at], ["registerTimer", at], ["deleteTimer", at]]
            return ["timers", *rng.choice(calls)]


def by_key(rows: list[Row]) -> dict[str, list[tuple[str, str]]]:
    grouped: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        grouped.setdefault(row.key, []).append((row.at, row.seen))
    return {key: sorted(values) for key, values in sorted(grouped.items())}


def test_random_programs_see_the_same_state_as_on_spark(
    spark: "SparkSession", tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    source = BatchSource(spark, tmp_path / "in", "key string, at int, program string")
    job = Job(source, tmp_path, ["key"], Interpreter(), OUTPUT, {"timeMode": "ProcessingTime"})
    for tasks in TASKS:
        for _ in range(2):
            source.add(
                [
                    (f"k{key}", at, json.dumps(program(rng)))
                    for key in range(KEYS)
                    if rng.random() < 0.8
                    for at in range(rng.randint(1, 2))
                ]
            )
        job.run(tasks=tasks, materialization=SNAPSHOTS)
    ours = job.take()
    theirs = [rows for rows in run_on_spark(job, "ProcessingTime") if rows]
    assert 2 * len(TASKS) == len(ours)
    assert all(ours)
    assert any(progress.snapshots for progress in job.progress)
    for batch, (expected, actual) in enumerate(zip(theirs, ours, strict=True)):
        assert by_key(expected) == by_key(actual), f"batch {batch}"
