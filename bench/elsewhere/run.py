"""
Compare statelog with the engines that a Python user could pick instead, in one run on the same events.

    python -m bench.elsewhere.run --setup                 make an environment for each engine: about 3 GB
    python -m bench.elsewhere.run --json FILE             check each engine's answers, then measure
    python -m bench.elsewhere.run --json FILE --only quix

Question: how many events a second, and how many for each second of CPU time, does each engine process, with state
that survives a crash where the engine has that?

Method: every engine processes the same events in two processes or threads, from files (Quix: from a topic of two
partitions, written before).  First each runs a small set of events, and its answers are compared with NumPy's.  An
engine that cannot run, or whose answers are wrong, is named with its error and is not measured.  Then the engines take
turns.  The first tenth of the events does not count.  The CPU time of all processes of the engine counts, for Quix with the
broker; a run is ended at `--seconds`, and what it processed by then counts.  The output of each run stays in
build/elsewhere/logs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.elsewhere.events import check_answers, make_events
from bench.elsewhere.watch import Watched, watch
from bench.harness.processes import descendants
from bench.harness.results import ROOT, Results, Run, in_turns, say
from tests.support.servers.sink_servers import kafka_broker

JOBS = Path(__file__).parent / "jobs"
HOME = ROOT / "build" / "elsewhere"
PACKAGES = {
    "flink": ("apache-flink==2.3.0",),
    "quix": ("quixstreams==3.28.0",),
    "pathway": ("pathway==0.33.0",),
    "bytewax": ("bytewax==0.21.1", "pyarrow", "numpy"),
}
"""What the environment of each engine has; Spark and statelog run in this one."""
QUERIES = ("totals", "last_ten")
SMALL = {"events": 20_000, "keys": 2_000, "batches": 4}
LARGE = {"events": 2_000_000, "keys": 200_000, "batches": 20}
CHECK_S = 180.0


@dataclass(frozen=True, slots=True)
class Engine:
    """
    One configuration of an engine.

    Args:
        title: Its name on the page.
        package: Key of `PACKAGES`; "" for this environment.
        arguments: The program in `jobs` and its arguments, or `-m` and a module.
        guarantee: What of its state and output survives a crash, for the page.
        output: What it emits, for the page.
        queries: Those that it answers.
    """

    title: str
    package: str
    arguments: tuple[str, ...]
    guarantee: str
    output: str
    queries: tuple[str, ...] = QUERIES


def _spark(title: str, peer: str, guarantee: str, queries: tuple[str, ...]) -> Engine:
    arguments = ("spark_job.py", peer)
    return Engine(title, "", arguments, guarantee, "key and micro-batch", queries)


_EXACT = "state and output, exactly once"
_STATE = "state exactly once, output at least once"
_FLINK = "state and output, exactly once, each 10 s"
_BYTEWAX = ("-m", "bytewax.testing", str(JOBS / "bytewax_job.py"), "-p", "2")
ENGINES = {
    "statelog-rows": _spark("statelog, rows, direct", "statelog-direct", _STATE, QUERIES),
    "statelog-rows-staged": _spark("statelog, rows, staged", "statelog-staged", _EXACT, QUERIES),
    "statelog-columns": _spark(
        "statelog, columns, direct", "statelog-columns-direct", _STATE, QUERIES[:1]
    ),
    "statelog-aggregate": _spark(
        "statelog `aggregate`, direct",
        "statelog-aggregate-direct",
        _STATE,
        QUERIES[:1],
    ),
    "spark-tws": _spark("Spark `transformWithState`, RocksDB", "spark-tws", _EXACT, QUERIES),
    "spark-aggregation": _spark(
        "Spark's aggregation, RocksDB", "spark-agg-rocksdb", _EXACT, QUERIES[:1]
    ),
    "flink-thread": Engine(
        "PyFlink, thread mode, RocksDB, changelog",
        "flink",
        ("flink_job.py", "--mode", "thread"),
        _FLINK,
        "event",
    ),
    "flink-process": Engine(
        "PyFlink, process mode, RocksDB, changelog",
        "flink",
        ("flink_job.py", "--mode", "process"),
        _FLINK,
        "event",
    ),
    "quix": Engine(
        "Quix Streams, RocksDB, change topic",
        "quix",
        ("quix_job.py", "run"),
        _FLINK,
        "event",
    ),
    "bytewax": Engine(
        "Bytewax, recovery each 10 s",
        "bytewax",
        (*_BYTEWAX, "-r", "{state}", "-s", "10", "-b", "0"),
        "state each 10 s, output at least once",
        "event",
    ),
    "pathway-reducers": Engine(
        "Pathway, its own reducers",
        "pathway",
        ("pathway_job.py", "--mode", "reducers", "--events", "{events}"),
        "nothing",
        "key and commit",
        QUERIES[:1],
    ),
    "pathway-function": Engine(  # a commit does not keep the order in which rows arrive
        "Pathway, `stateful_many`",
        "pathway",
        ("pathway_job.py", "--mode", "function", "--events", "{events}"),
        "nothing",
        "key and commit",
        QUERIES[:1],
    ),
}


def setup(names: set[str]) -> None:
    """Make the environments."""
    for name in sorted(names - {""}):
        folder = HOME / name
        python = folder / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        say(f"installing {', '.join(PACKAGES[name])}")
        pip = [str(python), "-m", "pip", "-q", "--disable-pip-version-check", "install"]
        # Flink's dependency apache-beam is built with the setuptools of its time.
        subprocess.run([*pip, "setuptools<81", "wheel", *PACKAGES[name]], check=True)


def python_of(engine: Engine) -> Path:
    """Return the interpreter of an engine."""
    return HOME / engine.package / "bin" / "python" if engine.package else Path(sys.executable)


@contextmanager
def _environment(
    engine: Engine, query: str, data: Path, *, answers: bool
) -> Iterator[dict[str, str]]:
    """Yield the environment of a run, with new folders; for Quix with a broker that has the events."""
    python = python_of(engine)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="statelog-elsewhere-")))
        for name in ("marks", "answers", "state"):
            (work / name).mkdir()
        environment = {
            **os.environ,
            "ELSEWHERE_DATA": str(data),
            "ELSEWHERE_QUERY": query,
            "ELSEWHERE_MARKS": str(work / "marks"),
            "ELSEWHERE_ANSWERS": str(work / "answers") if answers else "",
            "ELSEWHERE_STATE": str(work / "state"),
            "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        if engine.package:  # the packages of this environment are not theirs
            environment.pop("PYTHONPATH", None)
        if engine.package == "quix":
            environment["ELSEWHERE_BROKER"] = stack.enter_context(kafka_broker())
            environment["ELSEWHERE_TOPIC"] = "events"
            produce = [str(python), str(JOBS / "quix_job.py"), "produce"]
            subprocess.run(produce, env=environment, check=True, timeout=600)
        elif engine.package == "bytewax":
            recovery = [str(python), "-m", "bytewax.recovery", str(work / "state"), "2"]
            subprocess.run(recovery, env=environment, check=True, timeout=60)
        yield environment


def run_once(
    name: str, query: str, data: Path, size: Mapping[str, int], *, answers: bool, seconds: float
) -> tuple[Watched, int]:
    """
    Run an engine once; return what was seen, and the number of keys that were checked.

    Raises:
        RuntimeError: It failed; the message has the end of its output.
        AssertionError: An answer is wrong.
    """
    engine = ENGINES[name]
    log = HOME / "logs" / f"{name}-{query}{'-check' if answers else ''}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with _environment(engine, query, data, answers=answers) as environment:
        filled = [
            word.format(state=environment["ELSEWHERE_STATE"], events=size["events"])
            for word in engine.arguments
        ]
        program = filled if filled[0] == "-m" else [str(JOBS / filled[0]), *filled[1:]]
        others = broker_processes() if engine.package == "quix" else ()
        seen = watch(
            [str(python_of(engine)), *program], environment, log, limit_s=seconds, others=others
        )
        ended = log.read_text(encoding="utf-8", errors="replace")[-1500:]
        if seen.code not in (0, None) or not (answers or seen.events):
            raise RuntimeError(f"{name} ended with {seen.code}: {ended}")
        if not answers:
            return seen, 0
        if seen.code is None:
            raise RuntimeError(f"{name} did not end within {seconds:.0f} s: {ended}")
        return seen, check_answers(data, Path(environment["ELSEWHERE_ANSWERS"]), query)


def broker_processes() -> list[int]:
    """Return the processes of the broker that this process has started."""

    def is_broker(process: int) -> bool:
        return b"tansu" in Path(f"/proc/{process}/cmdline").read_bytes()

    return [process for process in descendants(os.getpid()) if is_broker(process)]


def measured(name: str, query: str, data: Path, seconds: float) -> Run:
    """Return the figures of one run."""
    seen, _ = run_once(name, query, data, LARGE, answers=False, seconds=seconds)
    per_s = seen.events / seen.events_s if seen.events_s else 0.0
    per_cpu_s = seen.events / seen.cpu_s if seen.cpu_s else 0.0
    return {
        "events": seen.events,
        "seconds": seen.events_s,
        "cpu_seconds": seen.cpu_s,
        "events_per_s": round(per_s),
        "events_per_cpu_s": round(per_cpu_s),
        "start_s": seen.start_s,
        "peak_mib": seen.peak_mib,
        "is_whole": seen.code == 0,
        "said": f"{per_s:,.0f} events/s, {per_cpu_s:,.0f} for each CPU second",
    }


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0].strip())
    parser.add_argument("--setup", action="store_true", help="only make the environments")
    parser.add_argument("--only", nargs="*", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--query", nargs="*", default=list(QUERIES), choices=QUERIES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=90.0, help="of a run")
    parser.add_argument("--name", default="elsewhere", help="name of the result")
    parser.add_argument("--json", type=Path, help="the result")
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args(arguments)


def checked(
    options: argparse.Namespace, results: Results, small: Path, large: Path
) -> tuple[list[tuple[str, int, Callable[[], Run]]], dict[str, dict[str, Any]]]:
    """Check the answers of each engine; return what is to be measured, and facts of each part."""
    parts: list[tuple[str, int, Callable[[], Run]]] = []
    facts: dict[str, dict[str, Any]] = {}
    chosen = [(query, name) for query in options.query for name in options.only]
    for query, name in chosen:
        engine = ENGINES[name]
        if query not in engine.queries:
            continue
        part = f"{query}/{name}"
        facts[part] = {
            "title": engine.title,
            "packages": list(PACKAGES.get(engine.package, ())),
            "guarantee": engine.guarantee,
            "output": engine.output,
        }
        try:
            _, keys = run_once(name, query, small, SMALL, answers=True, seconds=CHECK_S)
        except (RuntimeError, AssertionError, OSError, subprocess.SubprocessError) as error:
            say(f"  {part}: {error}")
            results.skip(part, f"{error}"[-600:], **facts[part])
            continue
        say(f"  {part}: the answers for {keys:,} keys are right")
        parts.append((part, options.rounds, partial(measured, name, query, large, options.seconds)))
    return parts, facts


def main(arguments: list[str] | None = None) -> int:
    """Check, then measure; return 1 if an engine could not be measured."""
    options = parse(arguments)
    if options.setup:
        setup({ENGINES[name].package for name in options.only})
        return 0
    if options.json is None:
        sys.exit("give --json FILE, or --setup")
    small, large = HOME / "events-small", HOME / "events"
    make_events(small, **SMALL)
    make_events(large, **LARGE)
    results = Results(
        options.json, options.name, {"rounds": options.rounds, **LARGE}, resume=options.resume
    )
    parts, facts = checked(options, results, small, large)
    return 1 if in_turns(results, parts, facts=facts) else 0


if __name__ == "__main__":
    sys.exit(main())
