"""What a block reads, and the text forms that all blocks share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness.figures import Spread
from bench.harness.results import read

Document = dict[str, Any]


class MissingError(Exception):
    """A benchmark that a block needs has no results; the argument is its name."""


@dataclass(slots=True)
class Source:
    """
    The results of one page.

    Args:
        folder: Where the JSON files are.
        figures: Figures that blocks drew: SVG by name.
    """

    folder: Path
    figures: dict[str, str] = field(default_factory=dict)

    def document(self, name: str) -> Document:
        """Return the results of a benchmark, or raise `MissingError`."""
        found = read(self.folder / f"{name}.json")
        if not found:
            raise MissingError(name)
        return found

    def find(self, name: str) -> Document:
        """Return the results of a benchmark; an empty dict without."""
        return read(self.folder / f"{name}.json")

    def figure(self, name: str, svg: str, alt: str) -> str:
        """Keep a figure, and return the line of the page that shows it."""
        self.figures[name] = svg
        return f"![{alt}](IMAGES/{name}.svg)"


Block = Callable[[Source], str]
"""Returns the Markdown of a block; IMAGES stands for the folder of figures."""


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def with_range(spread: Spread, unit: str = "") -> str:
    """Return a median with its quartiles."""
    return f"{number(spread.median)}{unit} ({number(spread.low)} to {number(spread.high)})"


def number(value: float) -> str:
    """Return a figure with three digits that count, or whole thousands with commas."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.2f}"


def times(value: float) -> str:
    """Return a ratio."""
    return f"{value:.1f}x" if value >= 1.95 else f"{value:.2f}x"


def size(count: float) -> str:
    """Return bytes in decimal units."""
    for unit, least in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= least:
            return f"{count / least:.3g} {unit}"
    return f"{count:.0f} B"


def origin(document: Document) -> str:
    """Return the line about where the figures are from: command, machine, commit, day."""
    parts = [part for part in document.get("parts", {}).values() if part.get("runs")]
    days = sorted({part["measured_at"][:10] for part in parts if part.get("measured_at")})
    commits = sorted({part["commit"] for part in parts if part.get("commit")})
    loads = [part["load"] for part in parts if "load" in part]
    machine = document["machine"]
    cpus = sorted({part.get("cpu") or machine["cpu"] for part in parts})
    facts = [
        f"`{document['command']}`",
        f"`bench/results/{document['name']}.json`",
        f"{machine['cores']} cores, {' and '.join(cpus)}",
        f"Python {machine['python']}, Spark {machine['packages']['pyspark']}",
        f"commit {', '.join(commits)}" if commits else "",
        ", ".join(days),
        f"load {min(loads)} to {max(loads)}" if loads else "",
    ]
    return "; ".join(filter(None, facts)) + "."
