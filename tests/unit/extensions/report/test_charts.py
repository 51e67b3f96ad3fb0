"""Charts: round scales, shapes of the right height, and tables with the same values."""

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.extensions.report.test_html import read

from statelog.extensions.report import texts
from statelog.extensions.report.charts import Chart, Series, chart, scale_top, summary


@given(st.floats(0, 1e15), st.booleans())
def test_a_scale_ends_above_the_largest_value_and_not_far(largest: float, binary: bool) -> None:
    top = scale_top(largest, binary=binary)
    assert top >= largest * (1 - 1e-9)
    assert top <= max(4.0, largest * 2.6 + 1)


@pytest.mark.parametrize(
    ("largest", "binary", "top"),
    [
        (0, False, 4),
        (1, False, 4),
        (5, False, 8),
        (11, False, 12),
        (6045, False, 8000),
        (469, False, 600),
        (900, True, 1000),
        (700 * 1024, True, 800 * 1024),
        (1020 * 1024, True, 1.0 * 1024**2),
        (1.1 * 1024**2, True, 1.2 * 1024**2),
    ],
)
def test_scales(largest: float, binary: bool, top: float) -> None:
    assert top == pytest.approx(scale_top(largest, binary=binary))


def a_chart(*, is_area: bool = False, **values: object) -> Chart:
    series = [Series("One", [1, None, 3], 1), Series("Two", [1, 2, 1], 2)]
    facts = {
        "identity": "mine",
        "title": "Mine",
        "note": "A note.",
        "head": "Checkpoint",
        "labels": ["7", "8", "9"],
        "series": series,
        "is_area": is_area,
    }
    return Chart(**(facts | values))  # type: ignore[arg-type]


def svg_of(page: str) -> ET.Element:
    found = re.search(r"<svg.*?</svg>", page, re.S)
    assert found is not None
    return ET.fromstring(found[0])


def test_bars_are_stacked_and_an_unknown_value_is_none() -> None:
    paths = [one.get("d") or "" for one in svg_of(chart(a_chart())).iter("path")]
    assert 2 == len(paths)
    # The scale ends at 4, so a value of one is 25 of 100 high; y counts from the top.
    assert ["75", "25"] == re.findall(r"M\S+ (\S+?)h", paths[0])
    assert ["50", "50", "0"] == re.findall(r"M\S+ (\S+?)h", paths[1])
    assert ["25", "75"] == re.findall(r"v(\d+)", paths[0])


def test_an_area_ends_where_a_value_is_unknown() -> None:
    paths = [one.get("d") or "" for one in svg_of(chart(a_chart(is_area=True))).iter("path")]
    assert 4 == len(paths)  # an area and its edge, for each series
    assert [2, 2, 1, 1] == [path.count("M") for path in paths]


def test_the_table_has_the_values_of_the_chart() -> None:
    page = chart(a_chart(extra=[("When", ["a", "b", "c"])]))
    cells = re.findall(r"<t[hd](?: [^>]*)?>([^<]*)<", page)
    assert [
        *("Checkpoint", "One", "Two", "Total", "When"),
        *("7", "1", "1", "2", "a"),
        *("8", "–", "2", "2", "b"),
        *("9", "3", "1", "4", "c"),
    ] == cells


def test_one_series_has_neither_legend_nor_total() -> None:
    page = chart(a_chart(series=[Series("One", [1, 2, 3], 1)]))
    assert "legend" not in page and "Total" not in page


def test_the_summary_says_where_the_largest_value_is() -> None:
    one = a_chart(show=texts.size)
    assert (
        "Mine: 3 values, from checkpoint 7 to 9. The largest is 4 B at 9, the last 4 B. The table "
        "below has all values."
    ) == summary(one, one.totals())
    nothing = a_chart(series=[Series("One", [None] * 3, 1)])
    assert "Mine: no values are known." == summary(nothing, nothing.totals())


def test_names_of_series_are_text() -> None:
    page = chart(a_chart(series=[Series("<b>", [1, 2, 3], 1)], title="<i>", labels=["<u>", "", ""]))
    assert not {"b", "i", "u"} & {name for name, _ in read(page).tags}
