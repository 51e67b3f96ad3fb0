"""The settings `onError` and `maxErrors` as what a task does with keys whose processing fails."""

import pytest

pytest.importorskip("pyspark")

from statelog.errors import InvalidOptionsError
from statelog.extensions.bad_records.policy import ErrorPolicy, MaxErrors, OnError, error_policy
from statelog.options.kinds import choice
from statelog.spark.query.record import Record
from statelog.spark.query.settings import SETTINGS, QuerySettings


def test_only_a_query_that_continues_has_a_policy() -> None:
    assert error_policy(QuerySettings()) is None
    assert ErrorPolicy(False, MaxErrors(5)) == error_policy(
        QuerySettings(on_error="skip", max_errors=5)
    )
    assert ErrorPolicy(True, MaxErrors(1000)) == error_policy(QuerySettings(on_error="dead-letter"))
    assert ErrorPolicy(True, MaxErrors(0, 0.5), freezes=True) == error_policy(
        QuerySettings(on_error="freeze", max_errors=0.5)
    )


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (QuerySettings(), ""),
        (QuerySettings(on_error="skip"), ""),
        (QuerySettings(on_error="dead-letter"), "onError"),
        (QuerySettings(on_error="freeze"), "onError"),
        (QuerySettings(record=Record(failed=True)), "record.*"),
    ],
)
def test_the_setting_that_keeps_rows_is_named(settings: QuerySettings, key: str) -> None:
    assert key == settings.keeps_rows


def test_the_setting_has_the_words_of_the_policy() -> None:
    assert choice(*OnError).name == SETTINGS["onError"].kind.name


BOUNDS = {7: MaxErrors(7), "7": MaxErrors(7), 0.05: MaxErrors(0, 0.05), "5e-2": MaxErrors(0, 0.05)}


@pytest.mark.parametrize("value", BOUNDS)
def test_the_bound_is_a_number_or_a_share(value: object) -> None:
    setting = SETTINGS["maxErrors"].parse(value)
    assert isinstance(setting, int | float)
    assert BOUNDS[value] == MaxErrors.of(setting)  # type: ignore[index]


@pytest.mark.parametrize("value", [0, -1, 1.5, "many", True, None, "nan", "inf", [3]])
def test_a_bound_that_is_neither_is_rejected(value: object) -> None:
    with pytest.raises(InvalidOptionsError, match="maxErrors"):
        SETTINGS["maxErrors"].parse(value)
