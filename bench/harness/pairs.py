"""Measure two ways of the same work in turns, and compare them pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.harness.figures import Spread

WARM = 3
"""Rounds that are not counted."""

Timed = Callable[[], float]
"""Does the work once, and returns how long it took, milliseconds."""


def compared(
    cases: Mapping[str, tuple[Timed, Timed]], rounds: int
) -> dict[str, tuple[Spread, Spread, Spread]]:
    """
    Return for each case the times of both ways, and the ratio of the first to the second.

    Args:
        cases: Both ways of each case.
        rounds: How often all cases take their turn, after those that are not counted.
    """
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(WARM + rounds):
        for name, (one, other) in cases.items():
            pairs[name].append((one(), other()))
    spreads = {}
    for name, both in pairs.items():
        counted = both[WARM:]
        ones, others = (Spread.of(times) for times in zip(*counted, strict=True))
        spreads[name] = ones, others, Spread.of([one / other for one, other in counted])
    return spreads
