"""
The explorations of `make model`: what must hold within which bounds, and which mutant must break it.

`python -m tests.campaigns.model.campaign` runs all of them, writes `tests/campaigns/model/results.json`, and from it the
tables of `docs/contributing/protocol.md`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaigns.model.explorer import Exploration, explore
from tests.campaigns.model.history import INVARIANTS
from tests.campaigns.model.page import write_page
from tests.campaigns.model.sequence import Bounds, Rules, SequenceModel
from tests.support.project import evidence

RESULTS = Path(__file__).with_name("results.json")
STATES_MAX = 12_000_000

small = partial(Bounds, drivers=2, numbers=5, claims=2, lost=1, late=1, tag=False)
tagged = partial(Bounds, drivers=2, numbers=5, claims=2, lost=0, late=0, tag=True)


@dataclass(frozen=True, slots=True)
class Mutant:
    """
    One rule that is left out.

    Args:
        rule: Field of `Rules`.
        slip: What a driver does without it.
        bounds: Where the shortest counterexample is within reach.
    """

    rule: str
    slip: str
    bounds: Bounds


MUTANTS = (
    Mutant("claims", "A new owner puts no claim entry.", small()),
    Mutant("keeps_claims", "Clean-up deletes claims.", small()),
    Mutant(
        "looks_after_claim",
        "A new owner lists before its claim only, which is too early.",
        small(numbers=6, lost=0, late=0),
    ),
    Mutant(
        "lists_until_settled",
        "A new owner lists once, and takes deleted entries for the last ones.",
        small(numbers=6, lost=0, late=0),
    ),
    Mutant(
        "repeats_same_attempt",
        "After a lost answer, the number is used again for another attempt.",
        small(),
    ),
    Mutant("reads_back", "Any entry counts as the driver's own.", small()),
    Mutant("deletes_after_commit", "Clean-up deletes what the next commit will subsume.", small()),
    Mutant(
        "lists_tags_after_commit",
        "Clean-up uses tags that were listed before the commit.",
        tagged(),
    ),
    Mutant("checks_after_tag", "A tag counts without a look at the newest.", tagged()),
    Mutant(
        "keeps_given_up",
        "An owner that goes back deletes the newer checkpoints before its commit.",
        small(rewinds=1, lost=0, late=0),
    ),
    Mutant(
        "begins_timeline",
        "An owner that goes back goes on in the timeline of the older checkpoint.",
        small(rewinds=1, lost=0, late=0, watched_by="reader"),
    ),
    Mutant(
        "readers_compare_timelines",
        "A reader takes any checkpoint with a higher number for a later one.",
        small(rewinds=1, lost=0, late=0, watched_by="reader"),
    ),
    Mutant(
        "rewinds_in_history",
        "A rewind takes any stored checkpoint with the number of the micro-batch.",
        small(numbers=6, claims=3, rewinds=2, lost=0, late=0, watched_by="sink"),
    ),
    Mutant(
        "sinks_compare_timelines",
        "A sink takes a micro-batch for written if it has the number or a later one.",
        small(rewinds=1, lost=0, late=0, watched_by="sink"),
    ),
    Mutant(
        "sinks_fence",
        "A sink writes rows of a timeline that was given up.",
        small(rewinds=1, lost=0, late=0, watched_by="sink"),
    ),
)

WHOLE = (
    small(drivers=3, numbers=6, claims=3),
    small(numbers=6, claims=3, late=2),
    tagged(numbers=6, claims=3, late=1),
    small(drivers=3, claims=4, lost=0),
    small(numbers=6, claims=4, lost=0),
    small(claims=3),
    small(numbers=6, claims=3, lost=0),
    tagged(numbers=6, claims=3),
    small(drivers=3, claims=3, lost=0),
    small(numbers=6, claims=3, rewinds=1, lost=0),
    tagged(claims=3, rewinds=1),
    small(numbers=6, claims=3, rewinds=1, lost=0, late=0, watched_by="reader"),
    small(numbers=7, claims=3, rewinds=2, lost=0, late=0, watched_by="sink"),
    small(numbers=6, claims=3, rewinds=2, watched_by="sink"),
    small(drivers=3, numbers=6, claims=3, rewinds=2, lost=0, late=0, watched_by="sink"),
)
"""
What `make model` explores whole.

The first five are large: up to 6.4 million states, which need 8 minutes of a core and 0.9 KB of memory a state.
"""

QUICK = (
    small(),
    tagged(),
    small(rewinds=1, lost=0, late=0, watched_by="reader"),
    small(numbers=6, rewinds=1, lost=0, watched_by="sink"),
)
"""What a test of every day explores whole."""


def explored(bounds: Bounds, broken_rule: str = "") -> Exploration:
    """Explore the protocol, with one of its rules left out or with all of them."""
    rules = {broken_rule: False} if broken_rule else {}
    model = SequenceModel(bounds, Rules(**rules))
    return explore(model.initial(), model.transitions, INVARIANTS, states_max=STATES_MAX)


def _whole_run(bounds: Bounds) -> dict[str, Any]:
    began = time.monotonic()
    result = explored(bounds)
    _say(f"{bounds}: {result.states:,} states, {time.monotonic() - began:.0f} s")
    return {"bounds": asdict(bounds), **asdict(result)}


def _mutant_run(mutant: Mutant) -> dict[str, Any]:
    result = explored(mutant.bounds, mutant.rule)
    _say(f"without {mutant.rule}: {result.broken or 'holds'}")
    return {"mutant": asdict(mutant), **asdict(result)}


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run the campaign; return 1 if an invariant broke, a mutant did not, or a run had no end."""
    with evidence.campaign("model of the protocol", simulated=True) as record:
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            whole, mutants = pool.map(_whole_run, WHOLE), pool.map(_mutant_run, MUTANTS)
            results = {"whole": list(whole), "mutants": list(mutants)}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        write_page(results)
        record_results(record, results)
    return 1 if record.findings else 0


def record_results(record: evidence.Record, results: Mapping[str, Any]) -> None:
    """Note what was explored, each invariant that broke, and each mutant that was missed."""
    record.runs = len(results["whole"])
    record.counts["states"] = sum(run["states"] for run in results["whole"])
    record.counts["transitions"] = sum(run["transitions"] for run in results["whole"])
    record.counts["mutants"] = len(results["mutants"])
    record.counts["mutants caught"] = sum(bool(run["broken"]) for run in results["mutants"])
    for run in results["whole"]:
        if run["broken"] or not run["is_whole"]:
            record.failed(f"{run['bounds']}: {run['broken'] or 'not whole'}")
    for run in results["mutants"]:
        if not run["broken"]:
            record.failed(f"the mutant {run['mutant']['rule']} breaks no invariant")


if __name__ == "__main__":
    sys.exit(main())
