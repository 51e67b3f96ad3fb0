"""Numbers as people read them."""

from collections.abc import Callable
from typing import Any

import pytest

from statelog.extensions.report import texts

MIB, TIB = 1024**2, 1024**4
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
COUNTS = {None: "–", 0: "0", 12_345: "12,345", 1.25: "1.2", 150.4: "150", -2.5: "-2.5"}
SIZES = {
    0: "0 B", 1023: "1,023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", MIB - 1: "1.0 MiB",
    5 * TIB: "5.0 TiB", 3000 * TIB: "3,000.0 TiB",
}  # fmt: skip
DURATIONS = {
    0: "0 ms", 999.4: "999 ms", 999.6: "1.0 s", 59_900: "59.9 s", 59_960: "1 min 0 s",
    125_000: "2 min 5 s", 3 * HOUR_MS + 4 * MINUTE_MS: "3 h 4 min", 50 * HOUR_MS: "2 d 2 h",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text_of", "expected"),
    [(texts.count, COUNTS), (texts.size, SIZES), (texts.duration, DURATIONS)],
    ids=["counts", "sizes", "durations"],
)
def test_numbers_are_rounded_and_have_their_unit(
    text_of: Callable[[Any], str], expected: dict[Any, str]
) -> None:
    assert expected == {value: text_of(value) for value in expected}


def test_shares_and_numbers_of_things() -> None:
    assert "71 %" == texts.percent(0.712)
    assert ["1 object", "2,000 objects"] == [texts.plural(count, "object") for count in (1, 2000)]
