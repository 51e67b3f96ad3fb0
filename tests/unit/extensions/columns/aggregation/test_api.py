"""What takes the place of Spark's aggregate functions, without Spark."""

import pytest

from statelog.errors import UsageError
from statelog.extensions.columns.aggregation import api
from statelog.extensions.columns.aggregation.api import aggregate


class Expression:
    """An expression of Spark, by its text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Column<'{self.text}'>"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("count(1)", r"Use F\.count\(\)"),
        ("count(*)", r"Use F\.count\(\)"),
        ("count(amount)", r"Use F\.count\('amount'\)"),
        ("sum((amount * 2))", r"Use F\.sum\(column\)"),
        ("avg(amount)", r"Use F\.mean\('amount'\)"),
        ("max_by(amount, at)", r"Use F\.last\(column, by=column\)"),
        ("amount", r"The aggregates of statelog\.spark\.functions are count, sum, min, max"),
        ("collect_list(amount)", r"The aggregates of statelog\.spark\.functions are count, sum"),
    ],
)
def test_the_equivalent_of_an_expression_is_named(
    monkeypatch: pytest.MonkeyPatch, text: str, advice: str
) -> None:
    monkeypatch.setattr(api, "Column", Expression)
    grouped: object = None  # the arguments are checked before the frame is looked at
    with pytest.raises(UsageError, match=f"Column<.* is a Spark expression.*{advice}"):
        aggregate(grouped, Expression(text))  # type: ignore[arg-type]
