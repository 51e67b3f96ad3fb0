"""The choice between pandas' internals and its public API; test_pandas_input runs both ways."""

import logging
from collections.abc import Iterator

import pandas as pd
import pytest

from statelog.spark.rows import pandas_internals
from statelog.spark.rows.pandas_internals import (
    BlockAccess,
    Form,
    FrameCutter,
    PublicAccess,
    agrees_with_public,
    frame_access,
)


@pytest.fixture(autouse=True)
def _without_cache() -> Iterator[None]:
    frame_access.cache_clear()
    yield
    frame_access.cache_clear()


def test_the_installed_pandas_has_the_known_internals() -> None:
    assert agrees_with_public(BlockAccess())
    assert agrees_with_public(PublicAccess())
    assert isinstance(frame_access(), BlockAccess)


class Failing(BlockAccess):
    def cutter(self, whole: pd.DataFrame, columns: pd.Index) -> FrameCutter:
        raise AttributeError("no such internal")


class OffByOne(BlockAccess):
    def cutter(self, whole: pd.DataFrame, columns: pd.Index) -> FrameCutter:
        return super().cutter(whole.iloc[::-1].reset_index(drop=True), columns)


class WrongForm(BlockAccess):
    def form_of(self, frame: pd.DataFrame) -> Form:
        return Form(id(frame), len(frame))


@pytest.mark.parametrize("internals", [Failing, OffByOne, WrongForm])
def test_other_internals_are_not_used(
    internals: type[BlockAccess], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pandas_internals, "BlockAccess", internals)
    with caplog.at_level(logging.WARNING, "statelog.spark"):
        assert isinstance(frame_access(), PublicAccess)
    assert f"pandas {pd.__version__}" in caplog.text
    assert isinstance(frame_access(), PublicAccess)
    assert len(caplog.records) == 1
