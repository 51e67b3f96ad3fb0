"""
The explorations of `make model`: what must hold within which bounds, and which mutant must break it.

`python -m tests.model.campaign` runs all of them, writes `tests/model/results.json`, and from it the
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

from tests import evidence
from tests.model import sequence, two_numberings
from tests.model.explorer import Exploration, Invariants, explore
from tests.model.page import write_page
from tests.model.sequence import Bounds

RESULTS = Path(__file__).with_name("results.json")
STATES_MAX = 12_000_000
SEQUENCE, TWO_NUMBERINGS = "dense sequence", "two numberings"
_INVARIANTS: Mapping[str, Invariants] = {
    SEQUENCE: sequence.INVARIANTS,
    TWO_NUMBERINGS: two_numberings.INVARIANTS,
}

small = partial(Bounds, drivers=2, numbers=5, claims=2, lost=1, late=1, tag=False)
tagged = partial(Bounds, drivers=2, numbers=5, claims=2, lost=0, late=0, tag=True)


@dataclass(frozen=True, slots=True)
class Mutant:
    """
    One rule that is left out.

    Args:
        protocol: Whose rule it is.
        rule: Field of the protocol's `Rules`.
        slip: What a driver does without it.
        bounds: Where the shortest counterexample is within reach.
    """

    protocol: str
    rule: str
    slip: str
    bounds: Bounds


MUTANTS = (
    Mutant(SEQUENCE, "claims", "A new owner puts no claim entry.", small()),
    Mutant(SEQUENCE, "keeps_claims", "Clean-up deletes claims.", small()),
    Mutant(
        SEQUENCE,
        "looks_after_claim",
        "A new owner lists before its claim only, which is too early.",
        small(numbers=6, lost=0, late=0),
    ),
    Mutant(
        SEQUENCE,
        "lists_until_settled",
        "A new owner lists once, and takes deleted entries for the last ones.",
        small(numbers=6, lost=0, late=0),
    ),
    Mutant(
        SEQUENCE,
        "repeats_same_attempt",
        "After a lost answer, the number is used again for another attempt.",
        small(),
    ),
    Mutant(SEQUENCE, "reads_back", "Any entry counts as the driver's own.", small()),
    Mutant(
        SEQUENCE,
        "deletes_after_commit",
        "Clean-up deletes what the next commit will subsume.",
        small(),
    ),
    Mutant(
        SEQUENCE,
        "lists_tags_after_commit",
        "Clean-up uses tags that were listed before the commit.",
        tagged(),
    ),
    Mutant(SEQUENCE, "checks_after_tag", "A tag counts without a look at the newest.", tagged()),
    Mutant(
        TWO_NUMBERINGS,
        "looks_after",
        "An owner looks for a newer claim before the put only, which is too early.",
        small(numbers=3),
    ),
    Mutant(
        TWO_NUMBERINGS,
        "looks_before",
        "An owner looks for a newer claim after the put only.",
        small(numbers=3, claims=3, lost=0),
    ),
    Mutant(TWO_NUMBERINGS, "skips_no_epoch", "A new owner skips an epoch.", small(numbers=3)),
    Mutant(
        TWO_NUMBERINGS,
        "knows_zombies",
        "A restart continues the highest id.",
        small(numbers=4, claims=3, lost=0, late=0),
    ),
    Mutant(
        TWO_NUMBERINGS,
        "reuses_no_id",
        "A new owner commits under ids below the zombies' ids.",
        small(numbers=4, claims=4, lost=0, late=0),
    ),
    Mutant(
        TWO_NUMBERINGS,
        "keeps_claims",
        "Clean-up deletes claims.",
        small(numbers=3, claims=3, lost=0, late=0),
    ),
    Mutant(
        TWO_NUMBERINGS, "compares_attempts", "Any object of its epoch is the driver's own.", small()
    ),
    Mutant(
        TWO_NUMBERINGS,
        "lists_tags_after_commit",
        "Clean-up uses tags that were listed before the commit.",
        tagged(numbers=3),
    ),
)

WHOLE = (
    (SEQUENCE, Bounds(drivers=2, numbers=6, claims=3, lost=1, late=2, tag=False)),
    (SEQUENCE, Bounds(drivers=2, numbers=6, claims=4, lost=0, late=1, tag=False)),
    (SEQUENCE, Bounds(drivers=2, numbers=6, claims=3, lost=0, late=1, tag=True)),
    (SEQUENCE, Bounds(drivers=3, numbers=6, claims=3, lost=1, late=1, tag=False)),
    (SEQUENCE, Bounds(drivers=3, numbers=5, claims=4, lost=0, late=1, tag=False)),
    (TWO_NUMBERINGS, Bounds(drivers=2, numbers=4, claims=3, lost=0, late=1, tag=False)),
    (TWO_NUMBERINGS, Bounds(drivers=2, numbers=4, claims=3, lost=1, late=0, tag=False)),
    (TWO_NUMBERINGS, Bounds(drivers=2, numbers=3, claims=2, lost=1, late=1, tag=True)),
    (TWO_NUMBERINGS, Bounds(drivers=3, numbers=3, claims=3, lost=0, late=1, tag=False)),
)
"""What `make model` explores whole."""

QUICK = (
    (SEQUENCE, small()),
    (SEQUENCE, tagged()),
    (TWO_NUMBERINGS, small(numbers=3)),
)
"""What a test of every day explores whole."""


def explored(protocol: str, bounds: Bounds, broken_rule: str = "") -> Exploration:
    """Explore a protocol, with one of its rules left out or with all of them."""
    rules = {broken_rule: False} if broken_rule else {}
    model: sequence.SequenceModel | two_numberings.TwoNumberingsModel
    if protocol == SEQUENCE:
        model = sequence.SequenceModel(bounds, sequence.Rules(**rules))
    else:
        model = two_numberings.TwoNumberingsModel(bounds, two_numberings.Rules(**rules))
    invariants = _INVARIANTS[protocol]
    return explore(model.initial(), model.transitions, invariants, states_max=STATES_MAX)


def _whole_run(run: tuple[str, Bounds]) -> dict[str, Any]:
    protocol, bounds = run
    began = time.monotonic()
    result = explored(protocol, bounds)
    _say(f"{protocol}, {bounds}: {result.states:,} states, {time.monotonic() - began:.0f} s")
    return {"protocol": protocol, "bounds": asdict(bounds), **asdict(result)}


def _mutant_run(mutant: Mutant) -> dict[str, Any]:
    result = explored(mutant.protocol, mutant.bounds, mutant.rule)
    _say(f"{mutant.protocol} without {mutant.rule}: {result.broken or 'holds'}")
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
            record.failed(f"{run['protocol']}, {run['bounds']}: {run['broken'] or 'not whole'}")
    for run in results["mutants"]:
        if not run["broken"]:
            record.failed(f"the mutant {run['mutant']['rule']} breaks no invariant")


if __name__ == "__main__":
    sys.exit(main())
