"""
A job killed again and again between the delivery of a micro-batch and Spark's record of its end.

The job runs a query for each sink and delivery at once, because the start of a process is what
costs.  In some runs each query stops at a fail point of its own and waits, and the kill comes when all
have stopped; in the others it comes at a random moment.  All processes of the job die by SIGKILL.

What a kill found is read from the disk afterwards, for each query by itself.  A query counts as killed
only if a micro-batch of it was planned and not finished; one between two batches does not count.
After every kill each target must have the rows of whole micro-batches, each exactly once: those that
Spark finished, and the next one if the target's own record says that it is delivered.

A micro-batch has one input file, but for one case: Spark's source of files writes down a file that it
takes, and the query then plans a micro-batch.  After a kill between the two the next micro-batch has
that file and one more.
"""

import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from tests.campaigns.chaos.request_log import noting
from tests.campaigns.chaos.sink_job import STARTED, STOPPED, Plan
from tests.campaigns.chaos.sink_places import TRANSACTIONAL, topic_of
from tests.campaigns.chaos.sink_reader import ANSWER
from tests.campaigns.chaos.sink_targets import Rows, Target
from tests.campaigns.model.linearize import check_journal
from tests.support.servers.kafka_reader import make_topic
from tests.support.spark.processors import TotalsModel

from statelog.demo.java import prepare_environment
from statelog.demo.process import kill_session, start_program

KEYS: Final = 5
ROWS: Final = 12
AHEAD: Final = 4
"""Input files that the query in front has before it when the job starts."""
RUN_SECONDS: Final = 300
PATIENCE_SECONDS: Final = 60
"""How long to wait until all queries have stopped."""
FILES: Final = ("parquet", "json", "csv", "table")
BEFORE: Final = "in a batch, not delivered"
BETWEEN: Final = "delivered, not finished"
IDLE: Final = "between two batches"


def points(sink: str, delivery: str) -> tuple[list[str], list[str]]:
    """Return the fail points before the target has the rows, and those after it."""
    early, late = [], ["after-sink", "after-batch"]
    commit = ["before-commit", "after-commit"]
    (early if delivery == "staged" else late).extend(commit)
    if sink in FILES:
        early.append("before-files")
        late.append("after-files")
    if sink in TRANSACTIONAL:
        early += ["before-write", "before-sink-commit"]
        late.append("after-write")
    return early, late


@dataclass
class SinkCampaign:
    """
    A series of kills of `sink_job.py`.

    Args:
        folder: Where everything is stored.
        queries: Names of sink and delivery, such as "parquet-staged".
        catalog: "in-memory" or "hive".
        seed: Of the input and of every choice.
        servers: Addresses by sink.
    """

    folder: Path
    queries: Sequence[str]
    catalog: str
    seed: int
    servers: dict[str, str] = field(default_factory=dict)
    situations: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often a query was killed in which situation."""
    deaths: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        prepare_environment()
        self.chance = random.Random(f"{self.seed} {self.catalog}")
        self.requests = self.folder / "requests.jsonl"
        self.trace_events = 0
        self.input: list[list[tuple[int, int]]] = []
        self.last_files: dict[str, list[int]] = {name: [] for name in self.queries}
        """The last input file of each micro-batch that a query planned."""
        self.not_planned = dict.fromkeys(self.queries, 0)
        """Input files that Spark took for a micro-batch and has not planned."""
        (self.folder / "input").mkdir(parents=True)
        for name in self.queries:
            (self.folder / name).mkdir()
            if name.startswith("kafka"):
                make_topic(self.servers["kafka"], topic_of(name))

    def run(self, kills: int) -> None:
        """Kill queries *kills* times in a micro-batch, let the job finish, and compare."""
        for number in itertools.count():
            if self.kills() >= kills:
                break
            self._add_input()
            self._run_to_death(at_random=number % 3 == 2)
        self._add_input()
        self._run_to_the_end()
        self.check_with_spark()
        self.trace_events = check_journal(self.requests)
        assert self.total(BETWEEN) > 0, self.story

    def kills(self) -> int:
        """Return how often a query was killed in a micro-batch."""
        return self.total(BEFORE) + self.total(BETWEEN)

    def total(self, situation: str) -> int:
        """Return how many kills found a query in this situation."""
        return sum(count for (_, at), count in self.situations.items() if at == situation)

    def target(self, name: str) -> Target:
        sink, delivery = name.split("-")
        place = self.folder / name / "output"
        if sink == "table" and self.catalog == "hive":
            place = self.folder / "warehouse" / f"totals_{delivery}"
        return Target(sink, self.folder / name / "query", place, self.servers)

    def check(self) -> dict[str, str]:
        """Check the rows of every target; return the situation of each query."""
        situations = {}
        for name in self.queries:
            target = self.target(name)
            planned, finished = target.planned(), target.finished()
            delivered = target.delivered()
            assert finished <= delivered <= planned <= finished + 1, (
                f"{name}: planned {planned}, delivered {delivered}, finished {finished}; {self.story}"
            )
            self._learn_files(name, target)
            self._compare(name, target.rows(), self._expected(name, delivered))
            situations[name] = (
                IDLE if planned == finished else BETWEEN if delivered == planned else BEFORE
            )
        return situations

    def check_with_spark(self) -> None:
        """Check that plain Spark reads every row of the files and tables exactly once."""
        places, arguments = {}, []
        for name in self.queries:
            sink, delivery = name.split("-")
            if sink in FILES:
                place = str(self.target(name).place)
                places[place] = name
                source = f"totals_{delivery}" if sink == "table" else sink
                arguments.append(f"{source}={place}")
        if not places:
            return
        program = [sys.executable, "-m", "tests.campaigns.chaos.sink_reader"]
        reader = subprocess.run(
            [*program, str(self.folder), self.catalog, *arguments],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        assert reader.returncode == 0, reader.stderr
        (line,) = [line for line in reader.stdout.splitlines() if line.startswith(ANSWER)]
        rows_of_place = json.loads(line.removeprefix(ANSWER))
        assert rows_of_place.keys() == places.keys()
        for place, rows in rows_of_place.items():
            name = places[place]
            expected = self._expected(name, self.target(name).finished())
            self._compare(name, Counter(map(tuple, rows)), expected)
        left = {name: self.target(name).leftovers() for name in places.values()}
        print(f"files in no entry of a log: {left}", flush=True)

    def _learn_files(self, name: str, target: Target) -> None:
        """Note which input files the micro-batches have that a query planned since the last kill."""
        last = self.last_files[name]
        while len(last) <= target.planned():
            last.append((last[-1] if last else -1) + self.not_planned[name] + 1)
            self.not_planned[name] = 0
        for batch, file in target.files_read().items():
            assert file == last[batch], f"{name}: batch {batch} ends with file {file}; {self.story}"
        self.not_planned[name] = target.newest_file() - (last[-1] if last else -1)

    def _expected(self, name: str, batch: int) -> Rows:
        """Return the output of a query up to a micro-batch."""
        model, rows, first = TotalsModel(), Rows(), 0
        for last in self.last_files[name][: batch + 1]:
            rows.update(model.apply(list(itertools.chain(*self.input[first : last + 1]))))
            first = last + 1
        return rows

    def _compare(self, name: str, actual: Rows, expected: Rows) -> None:
        more, less = actual - expected, expected - actual
        assert not more, f"{name} has too many rows {dict(more)}; {self.story}"
        assert not less, f"{name} misses {dict(less)}; {self.story}"

    def _add_input(self) -> None:
        front = max(self.target(name).newest_file() for name in self.queries)
        while len(self.input) < front + 1 + AHEAD:
            rows = [(self.chance.randrange(KEYS), self.chance.randrange(100)) for _ in range(ROWS)]
            table = pa.Table.from_pylist([{"key": key, "amount": amount} for key, amount in rows])
            number = len(self.input)
            hidden = self.folder / "input" / f".{number:05}.parquet"
            pq.write_table(table, hidden)
            os.utime(hidden, (1_600_000_000 + number,) * 2)  # Spark takes them in this order
            hidden.rename(hidden.with_name(hidden.name[1:]))
            self.input.append(rows)

    def _run_to_death(self, *, at_random: bool) -> None:
        stops = {} if at_random else {name: self._stop(name) for name in self.queries}
        process, log = self._start(stops)
        try:
            self._wait_for(STARTED if at_random else STOPPED, process, log)
            if at_random:
                time.sleep(self.chance.uniform(0.5, 8.0))
            status = process.poll()  # on a fast machine it may have finished before
            assert status in (None, 0), f"the job ended with {status}: {_text(log)}"
        finally:
            kill_session(process)  # Python, Spark's JVM and its workers
        situations = self.check()
        self.situations.update(situations.items())
        self.deaths.append(f"{'at random' if at_random else stops}")
        shown = Counter(situations.values())
        print(
            f"{time.strftime('%H:%M:%S')} {self.catalog}: {len(self.deaths)} processes, "
            f"{self.kills()} kills of queries; this one {dict(shown)} "
            f"{'at random' if at_random else sorted(stops.values())}",
            flush=True,
        )

    def _stop(self, name: str) -> tuple[str, int]:
        """Choose where a query stops; mostly where its rows are delivered."""
        sink, delivery = name.split("-")
        early, late = points(sink, delivery)
        choices = early if early and self.chance.random() < 0.25 else late
        return self.chance.choice(choices), self.chance.randint(1, 2)

    def _run_to_the_end(self) -> None:
        process, log = self._start({})
        try:
            status = process.wait(RUN_SECONDS)
        finally:
            kill_session(process)
        assert status == 0, f"{self.story}\n{_text(log)}"
        assert self.check() == dict.fromkeys(self.queries, IDLE)
        assert {last[-1] for last in self.last_files.values()} == {len(self.input) - 1}

    def _start(self, stops: dict[str, tuple[str, int]]) -> tuple[subprocess.Popen[bytes], Path]:
        log = self.folder / "job.log"
        log.unlink(missing_ok=True)
        tasks = self.chance.choice((1, 2, 3))
        plan = Plan(list(self.queries), self.catalog, tasks, stops, self.servers)
        program = [
            sys.executable,
            "-m",
            "tests.campaigns.chaos.sink_job",
            str(self.folder),
            plan.to_json(),
        ]
        return start_program(program, log=log, environment=self._environment()), log

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **noting(self.requests)}

    def _wait_for(self, line: str, process: subprocess.Popen[bytes], log: Path) -> None:
        """Wait until the job says *line*; a query that never gets to its stop is not waited for."""
        start = time.monotonic()
        until = start + RUN_SECONDS
        while line not in (text := _text(log)):
            assert process.poll() is None, f"the job ended with {process.returncode}: {text}"
            now = time.monotonic()
            if STARTED in text:
                until = min(until, now + PATIENCE_SECONDS)
            if now > until:
                assert STARTED in text, f"the job does not start: {text}"
                return
            time.sleep(0.02)

    @property
    def story(self) -> str:
        """What was done, for a failure's message."""
        counts = {
            f"{name}, {what}": count for (name, what), count in sorted(self.situations.items())
        }
        return (
            f"seed {self.seed}, catalog {self.catalog}, {len(self.deaths)} processes killed, "
            f"{self.kills()} kills of queries: {counts}; the last ones: {self.deaths[-2:]}"
        )


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")
