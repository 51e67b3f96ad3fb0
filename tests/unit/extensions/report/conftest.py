"""Figures of a job with costs."""

import pytest
from tests.support.locations.costly_history import CostlyHistory
from tests.support.stores.dict_store import DictStore

from statelog.extensions.report import Figures, ReportPlan, collect


@pytest.fixture(scope="session")
def figures() -> Figures:
    store = DictStore()
    CostlyHistory(5, store, retained=9).run(12)
    return collect(store, "dict://job", ReportPlan())
