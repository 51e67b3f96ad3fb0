"""The model holds within small bounds, each mutant breaks it, and the page shows the last campaign."""

import json

import pytest
from tests.campaigns.model.campaign import MUTANTS, QUICK, RESULTS, WHOLE, Mutant, explored
from tests.campaigns.model.explorer import State, explore
from tests.campaigns.model.history import INVARIANTS
from tests.campaigns.model.page import PAGE, with_block
from tests.campaigns.model.sequence import Bounds, Rules, SequenceModel


@pytest.mark.parametrize("bounds", QUICK)
def test_no_invariant_breaks_within_small_bounds(bounds: Bounds) -> None:
    result = explored(bounds)
    assert ("", True) == (result.broken, result.is_whole)
    assert result.states > 5_000, "nothing was explored"


QUICK_MUTANTS = [
    pytest.param(mutant, marks=[pytest.mark.slow] if mutant.bounds.claims > 2 else [])
    for mutant in MUTANTS
]


@pytest.mark.parametrize("mutant", QUICK_MUTANTS, ids=lambda mutant: mutant.rule)
def test_each_mutant_breaks_an_invariant(mutant: Mutant) -> None:
    result = explored(mutant.bounds, mutant.rule)
    assert result.broken
    assert result.trace


def test_the_page_shows_the_results_of_the_last_campaign() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    text = PAGE.read_text(encoding="utf-8")
    assert with_block(text, results) == text
    assert all(run["is_whole"] and not run["broken"] for run in results["whole"])
    assert [mutant.rule for mutant in MUTANTS] == [
        run["mutant"]["rule"] for run in results["mutants"]
    ]
    explored_whole = [Bounds(**run["bounds"]) for run in results["whole"]]
    assert len(explored_whole) == len({*explored_whole}), "bounds were explored twice"
    assert {*explored_whole} == {*WHOLE}, "run `make model`"


def test_the_explorer_finds_the_shortest_way() -> None:
    def transitions(state: State) -> list[tuple[str, State]]:
        (number,) = state
        return [(f"+{step}", (number + step,)) for step in (1, 3) if number + step <= 10]

    result = explore((0,), transitions, {"below 7": lambda state: state[0] < 7}, states_max=100)
    assert result.broken == "below 7"
    assert ("+1", "+3", "+3") == tuple(sorted(result.trace))
    whole = explore((0,), transitions, {}, states_max=100)
    assert (11, 18, 4, True) == (whole.states, whole.transitions, whole.depth, whole.is_whole)
    assert not explore((0,), transitions, {}, states_max=3).is_whole


def test_a_counterexample_is_a_way_through_the_model() -> None:
    mutant = MUTANTS[0]
    trace = explored(mutant.bounds, mutant.rule).trace
    model = SequenceModel(mutant.bounds, Rules(**{mutant.rule: False}))
    states = [model.initial()]
    for label in trace:
        assert all(holds(state) for holds in INVARIANTS.values() for state in states)
        steps = [step for state in states for step in model.transitions(state)]
        states = [state for name, state in steps if name == label]
    assert any(not holds(state) for holds in INVARIANTS.values() for state in states)
