"""
Measure, compare with the last page, and write the page: `make bench`.

    make bench                                    everything, in about three hours on two idle cores
    make bench ARGS="--list"                      what there is, and how long it takes at most
    make bench ARGS="--only peers-100k curves"    some of it, then the page
    make bench ARGS="--resume"                    go on where an interrupted run stopped
    make bench ARGS="--quick"                     tiny sizes, to see that all works; writes no page
    make bench ARGS="--page"                      measure nothing, write the page from the results
    make bench ARGS="--check"                     measure nothing, compare with the last page

Each benchmark writes bench/results/NAME.json.  What Spark prints goes to build/bench/NAME.log.
The exit code is 1 if a benchmark failed or a ratio got worse than on the last page (the one that is committed).
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.harness import check, page, results  # noqa: E402
from bench.harness.blocks import Source, ratios  # noqa: E402

RESULTS = ROOT / "bench" / "results"
LOGS = ROOT / "build" / "bench"
QUICK = LOGS / "quick"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """
    One entry of `make bench`.

    Args:
        command: Module or script, and its arguments.
        minutes: After this time it is ended.
        quick: Arguments for `--quick`, after the others; None: not part of it.
        resumes: Whether it takes `--resume`.
        title: What it measures.
    """

    command: str
    minutes: float
    title: str
    quick: str | None = None
    resumes: bool = False


def _peers(name: str, arguments: str, minutes: float, title: str) -> Benchmark:
    tiny = "--events 500 --batches 3 --rounds 1 --seconds 5"
    return Benchmark(f"bench.peers --name {name} {arguments}", minutes, title, tiny, True)


_ALL_FAST = (
    "spark-tws,spark-agg-rocksdb,spark-agg-heap,statelog-staged,statelog-direct,"
    "statelog-columns-staged,statelog-columns-direct,statelog-aggregate-staged,"
    "statelog-aggregate-direct"
)
_COLUMNS = (
    "spark-agg-rocksdb,spark-agg-heap,statelog-columns-staged,statelog-columns-direct,"
    "statelog-aggregate-staged,statelog-aggregate-direct"
)
_QUICK_CASES = "--events 500 --batches 3 --rounds 1"
BENCHMARKS = {
    "peers-100k": _peers(
        "peers-100k",
        "--events 100000 --batches 16 --rounds 2",
        35,
        "all ways to keep totals, 100,000 events",
    ),
    "peers-1m": _peers(
        "peers-1m",
        f"--events 1000000 --batches 10 --rounds 2 --seconds 60 --peers {_ALL_FAST}",
        30,
        "the same with a million events",
    ),
    "peers-50": _peers(
        "peers-50",
        f"--events 50 --batches 16 --rounds 3 --peers floor,{_ALL_FAST}",
        12,
        "the same with 50 events",
    ),
    "peers-7cols": _peers(
        "peers-7cols",
        "--workload w7cols --events 100000 --batches 16 --rounds 5 --seconds 100 "
        f"--peers {_COLUMNS}",
        12,
        "columns and aggregations over events of seven columns",
    ),
    "peers-7cols-1m": _peers(
        "peers-7cols-1m",
        "--workload w7cols --events 1000000 --batches 10 --rounds 3 --seconds 100 "
        f"--peers {_COLUMNS}",
        12,
        "the same with a million events",
    ),
    "task-1m": Benchmark(
        "bench/task.py --events 1000000 --batches 8", 5, "the phases of one task, in CPU time"
    ),
    "queries": Benchmark(
        "bench.beside --name queries --cases "
        "count,sessions,windows,hot-items,top-k,last-bid,statistics,enrich",
        30,
        "jobs shaped like Nexmark's, beside Spark",
        _QUICK_CASES,
        True,
    ),
    "variety": Benchmark(
        "bench.beside --name variety --cases list,map,ttl,timers,wide,strings --batches 16",
        20,
        "kinds of state, time and rows, beside Spark",
        _QUICK_CASES,
        True,
    ),
    "curves": Benchmark(
        "bench.curves",
        60,
        "batch size, keys, value size, tasks, operators, retained",
        "--quick --seconds 5",
        True,
    ),
    "many-batches": Benchmark(
        "bench.many_batches", 35, "1,500 micro-batches: is all flat?", "--batches 120", True
    ),
    "driver-scale": Benchmark(
        "bench.driver_scale --tasks 8,100,1000,5000 --logs 10000,50000,200000 --seconds 30",
        15,
        "a simulated driver with 5,000 tasks",
        "--tasks 8,100 --logs 200,2000 --log-tasks 100 --batches 3",
        True,
    ),
    "changelog": Benchmark("bench/changelog.py", 15, "the changelog without Spark"),
    "flink": Benchmark(
        "bench.elsewhere.flink_changelog",
        10,
        "Flink's changelog; first: bench.elsewhere.run --setup",
    ),
    "restart": Benchmark("bench/restart.py --rounds 3", 10, "restart beside an aggregation"),
    "restart-tws": Benchmark(
        "bench/restart.py --spark tws --rounds 2", 30, "restart beside transformWithState"
    ),
    "large_batch": Benchmark("bench/large_batch.py", 15, "a micro-batch larger than memory"),
    "connect": Benchmark("bench/connect.py --rounds 3 --batches 16", 10, "Spark Connect"),
    "read_state": Benchmark("bench/read_state.py --rounds 15", 10, "reading state"),
    "fork": Benchmark("bench/fork.py", 5, "forks"),
    "publish-iceberg": Benchmark("bench/publish.py", 5, "a published table of Iceberg"),
    "publish-delta": Benchmark("bench/publish.py --table delta", 5, "the same as a table of Delta"),
    "record": Benchmark(
        "bench/record.py --task --pairs 25 --flavours rows", 10, "what recording costs"
    ),
    "encryption": Benchmark("bench/encryption.py", 20, "what encryption costs"),
    "latency": Benchmark("bench/latency.py", 10, "how many requests a micro-batch waits for"),
    "visible": Benchmark(
        "bench/visible.py", 25, "from an event to its result in the sink, 1,000 events a second"
    ),
    "verify": Benchmark("bench/verify.py", 10, "a check of a whole location"),
    "elsewhere": Benchmark(
        "bench.elsewhere.run --query totals --rounds 2 --seconds 40",
        40,
        "PyFlink, Quix, Pathway, Bytewax, Spark and statelog; first: bench.elsewhere.run --setup",
        resumes=True,
    ),
    "elsewhere-last-ten": Benchmark(
        "bench.elsewhere.run --name elsewhere-last-ten --query last_ten --rounds 2 --seconds 40",
        30,
        "the same engines, the last ten events of each key",
        resumes=True,
    ),
}


def command_of(name: str, folder: Path, options: argparse.Namespace) -> list[str]:
    """Return the command line of a benchmark."""
    benchmark = BENCHMARKS[name]
    program, *arguments = benchmark.command.split()
    start = [program] if program.endswith(".py") else ["-m", program]
    if options.quick:
        arguments += (benchmark.quick or "").split()
    if options.resume and benchmark.resumes:
        arguments.append("--resume")
    return [sys.executable, *start, *arguments, "--json", str(folder / f"{name}.json")]


def measure(name: str, folder: Path, options: argparse.Namespace) -> bool:
    """Run a benchmark in a process group of its own, for a bounded time; return whether it ended well."""
    LOGS.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    log, began = LOGS / f"{name}.log", time.monotonic()
    limit = BENCHMARKS[name].minutes * 60 * options.patience
    print(f"== {name}: {BENCHMARKS[name].title} (at most {limit / 60:.0f} min)", flush=True)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]  # of `bench` and `tests`
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = command_of(name, folder, options)
    with log.open("w", encoding="utf-8") as noise:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stderr=noise, start_new_session=True
        )
        try:
            status: int | str = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = f"ended after {limit / 60:.0f} minutes"
        finally:
            _end_group(process)
    seconds = time.monotonic() - began
    if status:
        print(f"== {name} failed after {seconds:.0f} s ({status}); the end of {_shown(log)}:")
        print("\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]))
        return False
    sign(folder / f"{name}.json")
    print(f"== {name}: {seconds:.0f} s, {_shown(folder / name)}.json", flush=True)
    return True


def sign(path: Path) -> None:
    """Add commit and day to results without them, and leave out parts that only an earlier commit measured."""
    document = results.read(path)
    if not document:
        return
    if "commit" not in document:
        document = {"commit": results.commit(), "day": f"{dt.date.today()}", **document}
    if "parts" in document:
        document["parts"] = {
            name: part
            for name, part in document["parts"].items()
            if part.get("commit") == document["commit"]
        }
    results.write(path, document)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a benchmark with the JVM and the workers that it started."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def _shown(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def compare(folder: Path) -> bool:
    """Compare the ratios with those of the last page, name regressions, return whether there are none."""
    before, after = check.last_page(folder), ratios(Source(folder))
    found = list(check.regressions(before, after))
    for sentence in found:
        print(f"regression: {sentence}")
    for name in check.missing(before, after):
        print(f"note: the last page had the ratio {name!r}; the results do not")
    print(f"compared {len(before.keys() & after.keys())} ratios, {len(found)} regressions")
    return not found


def write_page(folder: Path) -> None:
    """Write the pages, their figures and the ratios that the next run is compared with."""
    for path in page.write(folder):
        print(f"wrote {_shown(path)}")
    check.store(folder, ratios(Source(folder)))


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="the same as --only")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--patience", type=float, default=1.0, help="times the limits of time")
    parser.add_argument("--results", type=Path, help="where the JSON is (default: bench/results)")
    options = parser.parse_args(arguments)
    options.only = [*options.names, *options.only]
    if unknown := set(options.only) - set(BENCHMARKS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    return options


def main() -> int:
    """Do what the command line says."""
    options = parsed()
    if options.list:
        for name, one in BENCHMARKS.items():
            print(f"{name:14} at most {one.minutes:3.0f} min  {one.title}")
        return 0
    folder = options.results or (QUICK if options.quick else RESULTS)
    folder = folder.resolve()
    failed = []
    if not (options.page or options.check):
        names = options.only or BENCHMARKS
        if options.quick:
            names = [name for name in names if BENCHMARKS[name].quick is not None]
        failed = [name for name in names if not measure(name, folder, options)]
        if failed:
            print(f"failed: {', '.join(failed)}")
    good = options.quick or compare(folder)
    if not (options.quick or options.check):
        write_page(folder)
    return 0 if good and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
