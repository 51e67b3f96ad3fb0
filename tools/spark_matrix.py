"""
Run the tests on Spark with each version of Spark, and write how they ended.

Run it with `make matrix`. Each version has an environment of its own (`make test-spark SPARK=4.1`). A
test that a version cannot offer is skipped with a reason that says so, and counted by it. On Spark
3.5 the essential tests run. The table goes to docs/reference/spark-versions.md, where a version that
did not run keeps its row; the names of failed tests go to the standard output.
"""

import argparse
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from statelog.extras import SPARK_VERSIONS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "spark-versions.md"
REPORTS = ROOT / "build" / "matrix"
VERSIONS = tuple(f"{major}.{minor}" for major, minor in SPARK_VERSIONS)
TARGETS = dict.fromkeys(VERSIONS, ("test-pure", "test-campaigns", "test-spark")) | {
    "3.5": ("test-smoke",)
}
PURE_TESTS = "tests/unit/spark tests/unit/extensions"
CHOICES = ("PURE_TESTS", "SMOKE_TESTS", "SPARK_TESTS")
"""The variables of the Makefile by which tests are chosen."""
NOT_OFFERED = "not offered by Spark"
BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"


def main() -> int:
    """Run, count, write; 1 if a test failed on any version."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS, help="which versions to run")
    parser.add_argument("--tests", default="", help="more arguments for pytest, such as files")
    parser.add_argument(
        "--failed", action="store_true", help="run only what failed, and put it in its place"
    )
    parser.add_argument("--count", action="store_true", help="only count what ran before")
    options = parser.parse_args()
    REPORTS.mkdir(parents=True, exist_ok=True)
    if not options.count:
        for version in options.versions:
            (_run_failed if options.failed else _run)(version, options.tests)
    counts = {version: _count(version) for version in VERSIONS}
    known = {version: count for version, count in counts.items() if count is not None}
    page = PAGE.read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    table = _table(known, page.split(BEGIN)[1].split(END)[0].splitlines())
    print(table)
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
    return int(any(count["failed"] for count in known.values()))


def _run(version: str, tests: str) -> None:
    for target in TARGETS[version]:
        report = REPORTS / f"{version}-{target}.xml"
        report.unlink(missing_ok=True)
        _make(version, target, f"--junitxml={report} {tests}", {"PURE_TESTS": PURE_TESTS})


def _run_failed(version: str, tests: str) -> None:
    """Run the failed tests of a version again, and replace them in its reports."""
    for target in TARGETS[version]:
        report, again = (REPORTS / f"{version}-{target}{end}.xml" for end in ("", "-again"))
        if not report.exists():
            continue
        tree = ET.parse(report)
        failed = {_id(case) for case in tree.iter("testcase") if _outcome(case) == "failed"}
        if not failed:
            continue
        chosen = " ".join(f"'{each}'" for each in sorted(failed))
        arguments = f"--junitxml={again} {tests}"
        _make(version, target, arguments, dict.fromkeys(CHOICES, chosen))
        fresh = {_id(case): case for case in ET.parse(again).iter("testcase")}
        for suite in tree.iter("testsuite"):
            for case in [each for each in suite.findall("testcase") if _id(each) in failed]:
                suite.remove(case)
            suite.extend(fresh.values())
        tree.write(report)


def _id(case: ET.Element) -> str:
    """Return the name of a test as pytest takes it."""
    return f"{(case.get('classname') or '').replace('.', '/')}.py::{case.get('name')}"


def _make(version: str, target: str, arguments: str, variables: dict[str, str]) -> None:
    settings = {"SPARK": version, "ARGS": arguments, **variables}
    subprocess.run(
        ["make", "--no-print-directory", target, *(f"{k}={v}" for k, v in settings.items())],
        cwd=ROOT,
        env={**os.environ, "MAKEFLAGS": ""},
        check=False,
    )


def _count(version: str) -> Counter[str] | None:
    """Return how the tests of a version ended, by its reports; None without one."""
    count: Counter[str] = Counter()
    reports = [path for path in map(REPORTS.joinpath, _names(version)) if path.exists()]
    for report in reports:
        for case in ET.parse(report).iter("testcase"):
            outcome = _outcome(case)
            count[outcome] += 1
            if outcome == "failed":
                print(f"Spark {version}: failed {case.get('classname')}::{case.get('name')}")
    return count if reports else None


def _names(version: str) -> list[str]:
    return [f"{version}-{target}.xml" for target in TARGETS[version]]


def _outcome(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    said = f"{skipped.get('message') or ''}{skipped.text or ''}"
    return "not offered" if NOT_OFFERED in said else "skipped"


def _table(counts: dict[str, Counter[str]], earlier: Sequence[str]) -> str:
    lines = [
        "| Spark | Passed | Failed | Not offered there | Skipped for other reasons |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for version in VERSIONS:
        if version not in counts:
            lines += [line for line in earlier if line.startswith(f"| {version} |")]
            continue
        count = counts[version]
        cells = [count[name] for name in ("passed", "failed", "not offered", "skipped")]
        lines.append(f"| {version} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
