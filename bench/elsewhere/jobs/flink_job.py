"""PyFlink: a `KeyedProcessFunction`, a result for each event; `thread` or `process` mode, RocksDB, change log."""

import argparse
import os
import sys
import time

from pyflink.common import Configuration, Types
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.state import ListStateDescriptor, ValueStateDescriptor
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment

DATA = os.environ["ELSEWHERE_DATA"]
QUERY = os.environ["ELSEWHERE_QUERY"]
STATE = os.environ["ELSEWHERE_STATE"]
ANSWERS = os.environ.get("ELSEWHERE_ANSWERS")
EVERY = 2_000
DISCARDING = "org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink"


class Marked(KeyedProcessFunction):
    """Counts the events of a task."""

    def open(self, context):
        self.seen = 0
        self.file = open(f"{MARKS}/{os.getpid()}-{id(self)}", "a", encoding="ascii")

    def mark(self):
        self.seen += 1
        if self.seen % EVERY == 1:
            print(time.time(), self.seen, file=self.file, flush=True)

    def close(self):
        print(time.time(), self.seen, file=self.file, flush=True)


class Total(Marked):
    """Count and sum."""

    def open(self, context):
        super().open(context)
        pair = Types.TUPLE([Types.LONG(), Types.DOUBLE()])
        self.total = context.get_state(ValueStateDescriptor("total", pair))

    def process_element(self, row, context):
        self.mark()
        n, amount = self.total.value() or (0, 0.0)
        new = (n + 1, amount + row[1])
        self.total.update(new)
        yield row[0], [float(new[0]), new[1]]


class LastTen(Marked):
    """The last ten values."""

    def open(self, context):
        super().open(context)
        self.last = context.get_list_state(ListStateDescriptor("last", Types.DOUBLE()))

    def process_element(self, row, context):
        self.mark()
        new = [*(self.last.get() or ()), row[1]][-10:]
        self.last.update(new)
        yield row[0], new


def settings(mode, backend, checkpoints):
    """Return Flink's configuration."""
    found = {
        "python.execution-mode": mode,
        "parallelism.default": "2",
        "taskmanager.numberOfTaskSlots": "2",
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        "python.state.cache-size": "200000",
        "state.backend.type": backend,
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "jobmanager.rpc.address": "127.0.0.1",
        "rest.bind-port": "18081-18090",
        "taskmanager.memory.managed.size": "1g",
        "taskmanager.memory.task.heap.size": "2g",
        "pipeline.object-reuse": "true",
    }
    if checkpoints:
        found |= {
            "execution.checkpointing.interval": "10s",
            "execution.checkpointing.mode": "EXACTLY_ONCE",
            "execution.checkpointing.dir": f"file://{STATE}/checkpoints",
            "execution.checkpointing.incremental": "true",
            "state.changelog.enabled": "true",
            "state.changelog.storage": "filesystem",
            "state.changelog.dstl.dfs.base-path": f"file://{STATE}/dstl",
        }
    return found


def main():
    """Run the job to the end of the files."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=("thread", "process"), default="thread")
    parser.add_argument("--backend", choices=("rocksdb", "hashmap"), default="rocksdb")
    parser.add_argument("--no-checkpoints", action="store_true")
    given = parser.parse_args()
    configuration = Configuration()
    for key, value in settings(given.mode, given.backend, not given.no_checkpoints).items():
        configuration.set_string(key, value)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    environment.set_parallelism(2)
    tables = StreamTableEnvironment.create(environment)
    tables.execute_sql(
        "CREATE TABLE events (k BIGINT, v DOUBLE) WITH ('connector' = 'filesystem', "
        f"'path' = 'file://{DATA}/csv', 'format' = 'csv')"
    )
    rows = tables.to_data_stream(tables.from_path("events"))
    function = Total() if QUERY == "totals" else LastTen()
    result = Types.TUPLE([Types.LONG(), Types.LIST(Types.DOUBLE())])
    keyed = rows.key_by(lambda row: row[0], key_type=Types.LONG())
    out = keyed.process(function, output_type=result)
    if ANSWERS:
        write_answers(out)
        return
    sink = get_gateway().jvm
    for name in DISCARDING.split("."):
        sink = getattr(sink, name)
    out._j_data_stream.sinkTo(sink())
    environment.execute("elsewhere")


def write_answers(out):
    """Write the last result of each key."""
    last = dict(tuple(row) for row in out.execute_and_collect())
    with open(f"{ANSWERS}/answers", "w", encoding="ascii") as file:
        for key, numbers in last.items():
            print(key, *numbers, file=file)


MARKS = os.environ["ELSEWHERE_MARKS"]
if __name__ == "__main__":
    main()
