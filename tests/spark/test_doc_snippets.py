"""The code of README and docs runs: the pages that need a Spark session."""

import pytest
from pyspark.sql.streaming import StreamingQuery
from tests.support.project.snippets import pages_to_run, run_page
from tests.support.spark.streams import until

import statelog.spark

PAGES = pages_to_run(with_spark=True)


def wait_for_batches(query: StreamingQuery) -> None:
    """Wait until a query has finished a micro-batch with rows, other than its first one."""

    def has_rows() -> bool:
        return any(batch.numInputRows and batch.batchId for batch in query.recentProgress)

    until(lambda: has_rows() or not query.isActive, "a micro-batch with rows")
    assert query.exception() is None
    assert has_rows()


@pytest.fixture
def session(spark):
    """Give the shared session, and take back what a page changes in it."""
    before = dict(spark.conf.getAll)
    try:
        yield spark
    finally:
        for query in spark.streams.active:
            query.stop()
        statelog.spark.disable(spark)
        for key in dict(spark.conf.getAll).keys() - before.keys():
            spark.conf.unset(key)


def test_there_are_pages():
    assert {"README.md", "docs/tutorial/from-spark.md", "docs/how-to/spark.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_the_page_runs(page, session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(page, tmp_path, {"__name__": "snippets", "wait_for_batches": wait_for_batches})
    for query in session.streams.active:
        wait_for_batches(query)
        query.stop()
