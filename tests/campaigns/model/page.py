"""The tables of `docs/contributing/protocol.md`, made from the results of the campaign."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.campaigns.model.history import INVARIANTS

PAGE = Path(__file__).parents[3] / "docs" / "contributing" / "protocol.md"
BEGIN, END = "<!-- begin: make model -->", "<!-- end: make model -->"


def with_block(text: str, results: Mapping[str, Any]) -> str:
    """Return the page with the tables between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{block(results)}\n{END}{after}"


def write_page(results: Mapping[str, Any]) -> None:
    PAGE.write_text(with_block(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


def block(results: Mapping[str, Any]) -> str:
    """Return the tables of what was explored, and of the mutants."""
    whole, mutants = results["whole"], results["mutants"]
    states = sum(run["states"] for run in whole)
    steps = sum(run["transitions"] for run in whole)
    lines = [
        "| Invariant | |",
        "|---|---|",
        *(f"| {name} | {rule.__doc__} |" for name, rule in INVARIANTS.items()),
        "",
        f"The exploration was complete: {states:,} states and {steps:,} steps. No invariant was broken.",
        "",
        "| Drivers | Claims | Numbers | Lost answers | Late requests | Tag | Rewinds | Watched by | States | Depth |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *map(_row, whole),
        "",
        f"Mutants: {len(mutants)}. Each breaks an invariant.",
        "",
        "| Rule left out | What then happens | Broken invariant | Steps |",
        "|---|---|---|---|",
        *map(_mutant_row, mutants),
        "",
        *_counterexamples(mutants),
    ]
    return "\n".join(lines)


def _row(run: Mapping[str, Any]) -> str:
    bounds = run["bounds"]
    names = ("drivers", "claims", "numbers", "lost", "late")
    tag = "yes" if bounds["tag"] else "no"
    cells = [*(str(bounds[name]) for name in names), tag, str(bounds["rewinds"])]
    watched_by = bounds["watched_by"] or "nothing"
    return f"| {' | '.join(cells)} | {watched_by} | {run['states']:,} | {run['depth']} |"


def _mutant_row(run: Mapping[str, Any]) -> str:
    mutant = run["mutant"]
    cells = (f"`{mutant['rule']}`", mutant["slip"], run["broken"])
    return f"| {' | '.join(cells)} | {len(run['trace'])} |"


def _counterexamples(mutants: list[Mapping[str, Any]]) -> list[str]:
    lines = ["The shortest counterexample of each:", ""]
    for run in mutants:
        mutant = run["mutant"]
        lines += [
            "```text",
            f"without {mutant['rule']}: {run['broken']}",
            *(f"  {number:2} {label}" for number, label in enumerate(run["trace"], start=1)),
            "```",
            "",
        ]
    return lines[:-1]
