"""
Compare the ratios of new results with those of the last page, and name the regressions.

Ratios within one run are compared, never times: another machine, or the same one on another day, has
other times.  A ratio may get worse by the spread of both measurements, and by a tenth at least.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.harness.figures import Ratio
from bench.harness.results import ROOT, read, write

LEAST_TOLERANCE = 0.10
MOST_TOLERANCE = 0.50
"""A spread above this is no excuse for any result: the measurement is to be repeated."""
NAME = "ratios.json"

Ratios = Mapping[str, Ratio]


def to_json(ratios: Ratios) -> dict[str, Any]:
    """Return ratios as they are stored beside the results."""
    return {
        name: {
            "value": round(one.value, 4),
            "spread": round(one.spread, 4),
            "better": "higher" if one.higher_is_better else "lower",
        }
        for name, one in sorted(ratios.items())
    }


def from_json(document: Mapping[str, Any]) -> dict[str, Ratio]:
    """Return stored ratios."""
    return {
        name: Ratio(one["value"], one["spread"], one["better"] == "higher")
        for name, one in document.items()
    }


def tolerance(before: Ratio, after: Ratio) -> float:
    """Return by which part a ratio may get worse."""
    both = math.hypot(before.spread, after.spread)
    return min(MOST_TOLERANCE, max(LEAST_TOLERANCE, both))


def regressions(before: Ratios, after: Ratios) -> Iterator[str]:
    """Yield a sentence for each ratio that got worse by more than its tolerance."""
    for name, new in sorted(after.items()):
        old = before.get(name)
        if old is None:
            continue
        allowed = tolerance(old, new)
        worse = old.value / new.value if new.higher_is_better else new.value / old.value
        if not worse <= 1 / (1 - allowed):  # also if the ratio is not a number
            yield (
                f"{name}: {new.value:.2f}x, was {old.value:.2f}x on the last page "
                f"(tolerance {allowed:.0%})"
            )


def missing(before: Ratios, after: Ratios) -> list[str]:
    """Return the ratios of the last page that the results no longer have."""
    return sorted(before.keys() - after.keys())


def last_page(folder: Path) -> dict[str, Ratio]:
    """Return the ratios of the committed page; without git, those of the file."""
    stored = folder / NAME
    try:
        name = stored.resolve().relative_to(ROOT).as_posix()
        done = subprocess.run(
            ["git", "show", f"HEAD:{name}"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return from_json(json.loads(done.stdout))
    except (OSError, ValueError, subprocess.CalledProcessError):
        return from_json(read(stored))


def store(folder: Path, ratios: Ratios) -> None:
    """Write the ratios of a page beside its results."""
    write(folder / NAME, to_json(ratios))
