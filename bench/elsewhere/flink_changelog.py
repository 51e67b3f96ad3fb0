"""
Measure Flink's own changelog storage, in Java, on the cases of bench/changelog.py.

    python -m bench.elsewhere.run --setup                  gets Flink's classes
    python -m bench.elsewhere.flink_changelog --json FILE

The program is jobs/FlinkChangelogBench.java, whose comment has the method.  It needs a Java compiler.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.elsewhere.run import HOME
from bench.harness.results import machine, write
from tests.flink.flink import find_javac

PROGRAM = Path(__file__).with_name("jobs") / "FlinkChangelogBench.java"
JARS = "flink/lib/python*/site-packages/pyflink/lib/flink-dist-*.jar"
HEAP = "2g"


def measure(jar: Path) -> dict[str, list[float]]:
    """Compile and run the program; return the figures of each case."""
    javac = find_javac()
    with tempfile.TemporaryDirectory(prefix="statelog-flink-") as folder:
        subprocess.run([javac, "-cp", jar, "-d", folder, PROGRAM], check=True)
        command = [
            javac.resolve().with_name("java"),
            f"-Xms{HEAP}",
            f"-Xmx{HEAP}",
            "-cp",
            f"{jar}:{folder}",
        ]
        ended = subprocess.run(
            [*command, PROGRAM.stem, folder], stdout=subprocess.PIPE, text=True, check=True
        )
    lines = (line.split() for line in ended.stdout.splitlines())
    return {name: [float(figure) for figure in figures] for name, *figures in lines}


def main() -> int:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    jar = next(iter(HOME.glob(JARS)), None)
    if jar is None:
        print("It needs Flink's classes: python -m bench.elsewhere.run --setup")
        return 1
    cases = measure(jar)
    for name, figures in cases.items():
        print(f"  {name}: {statistics.median(figures):.3f}", flush=True)
    version = jar.stem.removeprefix("flink-dist-")
    write(options.json, {"version": version, "heap": HEAP, "machine": machine(), "cases": cases})
    return 0


if __name__ == "__main__":
    sys.exit(main())
