"""
A campaign over every kind of stored file, in a child with limits.

`python -m tests.campaigns.fuzz.campaign --seconds 1200` runs one; `--case KIND FILE` reads a kept file again.
A read has 2 GB of address space beyond the imports, and 20 seconds.  The right answer, or one of
statelog's documented errors, is allowed.  Everything else is a finding, kept with its seed and its file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from tests.campaigns.fuzz import mutations
from tests.campaigns.fuzz.kinds import Kind
from tests.campaigns.fuzz.samples import limit_memory
from tests.support.project import evidence

from statelog.errors import StatelogError

ROOT = Path(__file__).resolve().parents[3]
KEPT = ROOT / "build" / "fuzz"
MEMORY_BYTES = 2 << 30
READ_SECONDS = 20
_START_SECONDS = 240
_FINDINGS_MAX = 200
RAW, FORGED = "raw", "right checksums"
ANSWER, REFUSED = "answer", "refused"


@dataclass
class Summary:
    first_seed: int
    seconds: float = 0.0
    cases: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)
    crashes: int = 0
    timeouts: int = 0
    slowest_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        kinds = sorted({name.split("|")[0] for name in self.cases})
        table = {
            kind: {
                name.split("|", 1)[1]: count
                for name, count in sorted(self.cases.items())
                if name.split("|")[0] == kind
            }
            for kind in kinds
        }
        return {
            "first_seed": self.first_seed,
            "seconds": round(self.seconds),
            "cases": sum(self.cases.values()),
            "crashes": self.crashes,
            "timeouts": self.timeouts,
            "slowest_seconds": round(self.slowest_seconds, 1),
            "kinds": table,
            "findings": self.findings,
        }

    def text(self) -> str:
        facts = self.to_json()
        lines = [
            f"{kind:22} " + "  ".join(f"{name} {count}" for name, count in counts.items())
            for kind, counts in facts["kinds"].items()
        ]
        lines.append(
            f"{facts['cases']} cases in {facts['seconds']} s from seed {self.first_seed}: "
            f"{len(self.findings)} findings, {self.crashes} crashes, {self.timeouts} time-outs, slowest "
            f"read {facts['slowest_seconds']} s"
        )
        return "\n".join(lines)


# --------------------------------------------------------------------------------------- the child


UNWRITABLE = (
    ValueError,
    OverflowError,
    TypeError,
    RecursionError,
    StatelogError,
    msgspec.MsgspecError,
    pa.ArrowException,
)
"""What a forgery raises of a value that its format cannot hold; the bytes are damaged instead."""


def outcome(kind: Kind, sample: int, damage: str, data: bytes) -> tuple[str, str]:
    """Read a file, and return what came of it and the text of a finding."""
    try:
        answer = kind.read(data)
    except StatelogError as error:
        return REFUSED, "" if str(error) else f"an empty {type(error).__name__}"
    except BaseException as error:
        lines = traceback.format_exception(error)
        return type(error).__name__, "".join(lines)[-3000:]
    if damage == RAW and not kind.same(kind.answers[sample], answer):
        return "wrong answer", f"{answer!r:.1000}"
    return ANSWER, ""


HOSTILE: dict[int, Callable[[bytes], Any]] = {
    -3_000_000: lambda data: os.abort(),
    -2_000_000: lambda data: time.sleep(3600),
    -1_000_000: lambda data: bytearray(MEMORY_BYTES + (1 << 20)),
}
"""Readers with the faults that a campaign finds, by seed: they test the campaign."""


def case_of(kinds: Sequence[Kind], seed: int) -> tuple[Kind, int, str, bytes]:
    """Return kind, sample, sort of damage and bytes of a seed."""
    if seed in HOSTILE:
        return Kind("hostile reader", [b"data"], HOSTILE[seed]), 0, FORGED, b"data"
    rng = random.Random(seed)
    kind = rng.choices(kinds, [kind.weight for kind in kinds])[0]
    sample = rng.randrange(len(kind.samples))
    data = kind.samples[sample]
    if kind.forgeries and rng.random() < 0.7:
        with contextlib.suppress(*UNWRITABLE):
            return kind, sample, FORGED, rng.choice(kind.forgeries)(rng, data)
    return kind, sample, RAW, mutations.raw(rng, data)


def child(connection: Connection, case_file: str) -> None:
    """Answer seeds until the connection closes."""
    from tests.campaigns.fuzz.stored_kinds import all_kinds

    kinds = all_kinds(Path(case_file).parent / str(os.getpid()))
    for kind in kinds:
        for at, sample in enumerate(kind.samples):
            kind.answers[at] = kind.read(sample)
    limit_memory(MEMORY_BYTES)
    connection.send("ready")
    while True:
        try:
            seed = connection.recv()
        except EOFError:
            return
        kind, sample, damage, data = case_of(kinds, seed)
        Path(case_file).write_bytes(data)
        connection.send((kind.name, damage))
        connection.send(outcome(kind, sample, damage, data))


# -------------------------------------------------------------------------------------- the parent


class Reader:
    """A child that reads cases; it is started again once it died."""

    def __init__(self, folder: str) -> None:
        self.case_file = Path(folder, "case.bin")
        self._context = multiprocessing.get_context("spawn")
        self._start()

    def _start(self) -> None:
        self._connection, theirs = self._context.Pipe()
        self._process = self._context.Process(
            target=child, args=(theirs, str(self.case_file)), daemon=True
        )
        self._process.start()
        theirs.close()
        if not self._connection.poll(_START_SECONDS) or self._connection.recv() != "ready":
            raise RuntimeError("the child of the campaign did not start")

    def read(self, seed: int) -> tuple[str, str, str, str]:
        """Return kind, sort of damage, outcome and text of a finding."""
        kind, damage = "unknown", "unknown"
        try:
            self._connection.send(seed)
            if self._connection.poll(READ_SECONDS):
                kind, damage = self._connection.recv()
                if self._connection.poll(READ_SECONDS):
                    return kind, damage, *self._connection.recv()
            self.close()
            verdict = "time-out", f"no answer within {READ_SECONDS} s"
        except (EOFError, OSError):
            self._process.join()
            verdict = "crash", f"the child ended with exit code {self._process.exitcode}"
        self._start()
        return kind, damage, *verdict

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def run(seconds: float, first_seed: int, summary_file: Path | None = None) -> Summary:
    """Read damaged files for a time; the figures so far are written every half minute."""
    summary = Summary(first_seed)
    with tempfile.TemporaryDirectory(prefix="statelog-fuzz-") as folder:
        reader = Reader(folder)
        began = written = time.monotonic()
        seed = first_seed
        while (now := time.monotonic()) - began < seconds and len(summary.findings) < _FINDINGS_MAX:
            kind, damage, verdict, text = reader.read(seed)
            summary.slowest_seconds = max(summary.slowest_seconds, time.monotonic() - now)
            summary.cases[f"{kind}|{damage}, {verdict}"] += 1
            summary.crashes += verdict == "crash"
            summary.timeouts += verdict == "time-out"
            if text:
                file = KEPT / f"{kind.replace(' ', '-')}-{seed}.bin"
                KEPT.mkdir(parents=True, exist_ok=True)
                file.write_bytes(reader.case_file.read_bytes())
                finding = {"kind": kind, "damage": damage, "seed": seed, "verdict": verdict}
                summary.findings.append(
                    {**finding, "file": str(file.relative_to(ROOT)), "text": text}
                )
            seed += 1
            if summary_file is not None and now > written + 30:
                summary.seconds, written = now - began, now
                write_summary(summary, summary_file)
        summary.seconds = time.monotonic() - began
        reader.close()
    return summary


def write_summary(summary: Summary, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(summary.to_json(), indent=1) + "\n")


def run_recorded(seconds: float, first_seed: int, summary_file: Path | None = None) -> Summary:
    """Run a campaign, and write its evidence."""
    with evidence.campaign("forged files") as record:
        summary = run(seconds, first_seed, summary_file)
        cases = sum(summary.cases.values())
        record.add_seeds(first_seed, first_seed + cases - 1)
        record.counts.update(
            {"forged inputs": cases, "kinds of files": len(summary.to_json()["kinds"])}
        )
        for finding in summary.findings:
            record.failed("{kind}, {damage}, seed {seed}: {verdict}".format(**finding))
    return summary


def read_again(name: str, file: str) -> int:
    """Read a kept file of a kind, and show what comes of it."""
    from tests.campaigns.fuzz.stored_kinds import all_kinds

    with tempfile.TemporaryDirectory(prefix="statelog-fuzz-") as folder:
        kind = next(kind for kind in all_kinds(Path(folder)) if kind.name == name)
        limit_memory(MEMORY_BYTES)
        print(repr(kind.read(Path(file).read_bytes()))[:2000])
    return 0


def main(arguments: list[str]) -> int:
    """Run a campaign, or read one file again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big") << 24)
    parser.add_argument("--summary", type=Path, default=KEPT / "summary.json")
    parser.add_argument("--case", nargs=2, metavar=("KIND", "FILE"))
    options = parser.parse_args(arguments)
    if options.case:
        return read_again(*options.case)
    print(f"seeds from {options.seed}", flush=True)
    summary = run_recorded(options.seconds, options.seed, options.summary)
    write_summary(summary, options.summary)
    print(summary.text())
    for finding in summary.findings[:20]:
        print(json.dumps({**finding, "text": finding["text"][-1500:]}, indent=1))
    return int(bool(summary.findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
