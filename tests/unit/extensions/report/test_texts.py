"""Numbers as people read them."""

import pytest

from statelog.extensions.report import texts


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (12_345, "12,345"), (1.25, "1.2"), (150.4, "150"), (-2.5, "-2.5")],
)
def test_counts(value: float | None, text: str) -> None:
    assert text == texts.count(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024 * 1024 - 1, "1.0 MiB"),
        (5 * 1024**4, "5.0 TiB"),
        (3000 * 1024**4, "3,000.0 TiB"),
    ],
)
def test_sizes(value: float, text: str) -> None:
    assert text == texts.size(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 ms"),
        (999.4, "999 ms"),
        (999.6, "1.0 s"),
        (59_900, "59.9 s"),
        (59_960, "1 min 0 s"),
        (125_000, "2 min 5 s"),
        (3_600_000 * 3 + 60_000 * 4, "3 h 4 min"),
        (3_600_000 * 50, "2 d 2 h"),
    ],
)
def test_durations(value: float, text: str) -> None:
    assert text == texts.duration(value)


def test_shares_and_numbers_of_things() -> None:
    assert "71 %" == texts.percent(0.712)
    assert ["1 object", "2,000 objects"] == [texts.plural(count, "object") for count in (1, 2000)]
