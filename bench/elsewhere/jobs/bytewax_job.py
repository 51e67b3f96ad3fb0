"""Bytewax: `stateful_map`, a result for each event.  Run by `python -m bytewax.testing ... -p 2`."""

import os
import time
from pathlib import Path

import bytewax.operators as op
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition

DATA = Path(os.environ["ELSEWHERE_DATA"])
QUERY = os.environ["ELSEWHERE_QUERY"]
ANSWERS = os.environ.get("ELSEWHERE_ANSWERS")
BATCH = 1_000
EVERY = 20_000


class Partition(StatefulSourcePartition):
    """The events of one partition, file by file; its snapshot is the number of events read."""

    def __init__(self, number, position):
        files = sorted((DATA / "parquet").glob(f"*-{number}.parquet"))
        tables = [pq.read_table(path) for path in files]
        self.keys = [str(key) for table in tables for key in table["key"].to_pylist()]
        self.values = [value for table in tables for value in table["value"].to_pylist()]
        self.position = position or 0

    def next_batch(self):
        start, self.position = self.position, self.position + BATCH
        if start >= len(self.keys):
            raise StopIteration
        stop = self.position
        return list(zip(self.keys[start:stop], self.values[start:stop], strict=True))

    def snapshot(self):
        return self.position


class Source(FixedPartitionedSource):
    """Two partitions."""

    def list_parts(self):
        return ["0", "1"]

    def build_part(self, step, number, position):
        return Partition(number, position)


class Marks:
    """Counts the events of a process."""

    def __init__(self):
        self.seen = 0
        self.file = None

    def add(self):
        if self.file is None:  # in the process that runs the function
            path = f"{os.environ['ELSEWHERE_MARKS']}/{os.getpid()}"
            self.file = open(path, "a", encoding="ascii")
        self.seen += 1
        if self.seen % EVERY == 1:
            print(time.time(), self.seen, file=self.file, flush=True)


marks = Marks()


def total(state, value):
    """Add a value to count and sum."""
    marks.add()
    n, amount = state or (0, 0.0)
    state = (n + 1, amount + value)
    return state, state


def last_ten(state, value):
    """Add a value to the last ten."""
    marks.add()
    state = ((state or []) + [value])[-10:]
    return state, state


class Answers(StatelessSinkPartition):
    """Drops the results, or writes the last one of each key at the end."""

    def __init__(self):
        self.last = {}

    def write_batch(self, items):
        if ANSWERS:
            self.last.update(items)

    def close(self):
        if ANSWERS:
            with open(f"{ANSWERS}/{os.getpid()}-{id(self)}", "w", encoding="ascii") as file:
                for key, numbers in self.last.items():
                    print(key, *numbers, file=file)


class Sink(DynamicSink):
    """A sink for each worker."""

    def build(self, step, worker, workers):
        return Answers()


flow = Dataflow("elsewhere")
events = op.input("events", flow, Source())
results = op.stateful_map("results", events, total if QUERY == "totals" else last_ten)
op.output("out", results, Sink())
