"""
The results of one benchmark: a JSON file that grows run by run.

A file has the command, the machine, the commit and the arguments, and for each *part* (a peer, a query, a
point of a curve) the facts of the part and the list of its runs.  It is written after every
run, so that a benchmark that was interrupted loses one run, and continues with `resume`.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FORMAT = 1
Run = dict[str, Any]


def machine() -> dict[str, Any]:
    """Return a description of the machine and of what runs on it."""
    models = set()
    memory = 0
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
            models = {line.split(":", 1)[1].strip() for line in cpuinfo if "model name" in line}
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        models = {platform.processor()}
    return {
        "cpu": ", ".join(sorted(models)),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("pyspark", "pyarrow", "numpy", "pandas")},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def commit() -> str:
    """Return the commit of the sources, with "+" if they have changes; "" outside of git."""
    try:
        head = _git("rev-parse", "--short=10", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", "src", "bench/*.py")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def command_line() -> str:
    """Return the command of this process without the paths of a machine."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    script = f"-m {spec.name}" if spec is not None else f"bench/{Path(sys.argv[0]).name}"
    kept = []
    arguments = iter(sys.argv[1:])
    for one in arguments:
        if one == "--json":
            next(arguments, None)
        elif not one.startswith("--json=") and one != "--resume":
            kept.append(one)
    return " ".join(["python", script, *kept])


class Results:
    """
    The results of one benchmark in its file.

    Args:
        path: The file.
        name: Name of the benchmark.
        arguments: What changes the figures.  Parts of a file with other arguments are dropped.
        resume: Keep the runs of parts that this commit measured, instead of measuring them again.
    """

    def __init__(
        self, path: Path, name: str, arguments: Mapping[str, Any], *, resume: bool = False
    ) -> None:
        self.path = path
        self._began = time.monotonic()
        self._commit = commit()
        self._fresh: set[str] = set()
        before = read(path)
        same = before.get("name") == name and before.get("arguments") == dict(arguments)
        self.parts: dict[str, dict[str, Any]] = dict(before.get("parts", {})) if same else {}
        self._seconds = before.get("seconds", 0.0) if same and resume else 0.0
        if resume:
            self._fresh = {
                name for name, part in self.parts.items() if part.get("commit") == self._commit
            }
        self._head = {
            "format": FORMAT,
            "name": name,
            "command": command_line(),
            "arguments": dict(arguments),
            "machine": machine(),
        }

    def runs(self, part: str) -> list[Run]:
        """Return the runs of a part in this measurement."""
        return list(self.parts[part]["runs"]) if part in self._fresh else []

    def add(self, part: str, run: Run, **facts: Any) -> None:
        """Add a run of a part, with facts about the part, and write the file."""
        entry = self._entry(part)
        entry.update(facts)
        entry["runs"].append(run)
        self._save()

    def skip(self, part: str, reason: str, **facts: Any) -> None:
        """Record why a part was not measured."""
        self.parts[part] = {"skipped": reason, "runs": [], **self._origin(), **facts}
        self._fresh.add(part)
        self._save()

    def failed(self, part: str, reason: str, **facts: Any) -> None:
        """Record why a part has no further runs."""
        self._entry(part).update({"failed": reason, **facts})
        self._save()

    def _entry(self, part: str) -> dict[str, Any]:
        if part not in self._fresh:
            self.parts[part] = {"runs": [], **self._origin()}
            self._fresh.add(part)
        return self.parts[part]

    def _origin(self) -> dict[str, Any]:
        return {
            "commit": self._commit,
            "cpu": self._head["machine"]["cpu"],
            "measured_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "load": round(os.getloadavg()[0], 2),
        }

    def _save(self) -> None:
        seconds = round(self._seconds + time.monotonic() - self._began, 1)
        document = {**self._head, "commit": self._commit, "seconds": seconds, "parts": self.parts}
        write(self.path, document)


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Replace a JSON file as a whole; lists of numbers stay on one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    hidden.write_text(_text(document, 0) + "\n", encoding="utf-8")
    hidden.replace(path)


def _text(value: Any, depth: int) -> str:
    inner, outer = " " * (depth + 1), " " * depth
    if isinstance(value, dict) and any(isinstance(one, dict | list) for one in value.values()):
        lines = [f"{inner}{json.dumps(str(k))}: {_text(v, depth + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{outer}}}"
    if isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        lines = [f"{inner}{_text(one, depth + 1)}" for one in value]
        return "[\n" + ",\n".join(lines) + f"\n{outer}]"
    return json.dumps(value)


def read(path: Path) -> dict[str, Any]:
    """Return a JSON file; an empty dict if it does not exist."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}


def in_turns(
    results: Results,
    parts: Iterable[tuple[str, int, Callable[[], Run]]],
    *,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    deadline: float | None = None,
) -> list[str]:
    """
    Measure parts in turns: one run of each, then the next run of each.

    A run that fails is repeated once.  A part that fails twice is left out of the later turns and says so, and
    does not keep the others from being measured.

    Args:
        results: Where the runs are added.
        parts: Name, number of runs, and the function that makes one run.
        facts: Facts of each part.
        deadline: No run starts after this time of `time.monotonic`; the first run of each part does.

    Returns:
        The parts that failed.
    """
    chosen, failed = list(parts), dict[str, str]()
    for number in range(max((runs for _, runs, _ in chosen), default=0)):
        for name, runs, measure in chosen:
            if number >= runs or len(results.runs(name)) > number or name in failed:
                continue
            if number and deadline is not None and time.monotonic() > deadline:
                continue
            began = time.monotonic()
            run = attempt(name, measure)
            if isinstance(run, str):
                failed[name] = run
                results.failed(name, run, **(facts or {}).get(name, {}))
                continue
            results.add(name, run, **(facts or {}).get(name, {}))
            said = run.get("said", "")
            seconds = time.monotonic() - began
            say(f"  {name}, run {number + 1} of {runs}: {said} ({seconds:.0f} s)")
    return list(failed)


def attempt(name: str, measure: Callable[[], Run]) -> Run | str:
    """Return a run, or the reason if it failed twice."""
    reason = ""
    for _ in range(2):
        try:
            return measure()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"[:300]
            say(f"  {name} failed: {reason}")
    return reason


def say(text: str) -> None:
    """Print a line of progress; what Spark says goes to the other stream."""
    print(text, flush=True)
