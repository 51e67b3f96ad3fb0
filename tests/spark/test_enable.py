"""Spark's own transformWithState on statelog, for the sessions that were enabled."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, GroupedData, Row
from tests.support.locations.sequence_entries import committed
from tests.support.spark.processors import INPUT, TOTALS, Totals, totals_of
from tests.support.spark.streams import ON_ROCKSDB, BatchSource, configured, run_to_end, wait
from tests.support.spark.versions import ROWS, row_operator

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import Entries
from statelog.errors import InvalidOptionsError, UsageError
from statelog.metrics import Metrics
from statelog.spark import BatchProgress, StatefulStream, disable, enable
from statelog.store import open_store

LOCATION = "spark.statelog.baseLocation"


@pytest.fixture
def session(spark):
    new = spark.newSession()
    yield new
    disable(new)


def totals(source: BatchSource) -> DataFrame:
    """The user's code, which knows nothing of statelog."""
    return row_operator(source.frame().groupBy("key"))(Totals(), TOTALS, "Update", "None")


def run(frame: DataFrame, checkpoint: Path, name: str = "totals", **options: Any) -> list[Row]:
    rows: list[Row] = []
    writer = frame.writeStream.outputMode("update").queryName(name).options(**options)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    wait(writer.foreachBatch(lambda batch, _: rows.extend(batch.collect())).start())
    return sorted(rows)


@ROWS
def test_an_enabled_session_runs_sparks_own_call_on_statelog(session, spark, tmp_path):
    sparks_own = GroupedData.transformWithState
    source = BatchSource(session, tmp_path / "in", INPUT)
    enable(session)
    source.add([(1, 2), (2, 5)])
    alone = totals(source)
    assert isinstance(alone, StatefulStream)
    assert totals_of([[(1, 2), (2, 5)]])[0] == run(alone, tmp_path / "alone")
    assert committed(tmp_path / "alone" / "statelog")  # beside the checkpoint of the query
    source = BatchSource(session, tmp_path / "later", INPUT)
    for key, value in ((LOCATION, str(tmp_path / "states")), ("spark.statelog.tasks", "3")):
        session.conf.set(key, value)
    enable(session)
    batches = [[(1, 2), (2, 5)], [(1, 3), (7, 0)]]
    for rows, expected in zip(batches, totals_of(batches), strict=True):
        source.add(rows)
        stream = totals(source)
        assert isinstance(stream, StatefulStream)
        assert expected == run(stream.where("rows > 0"), tmp_path / "query")
    state = open_store(str(tmp_path / "states" / "totals"))
    newest = Entries(state).newest()
    assert newest is not None
    record = BatchRecord.of(newest)
    assert (1, 3) == (record.batch_id, record.figures.tasks)
    with pytest.raises(UsageError, match="Give the query a queryName"):
        totals(source).writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "x")
        ).start()
    options = {"statelog.stateLocation": str(tmp_path / "own"), "statelog.delivery": "direct"}
    assert [(1, 5, 2), (2, 5, 1), (7, 0, 1)] == run(totals(source), tmp_path / "other", **options)[
        -3:
    ]
    assert committed(tmp_path / "own")

    batch = session.createDataFrame([(1, 2)], INPUT).groupBy("key")
    assert [(1, 2, 1)] == batch.transformWithState(Totals(), TOTALS, "Update", "None").collect()
    assert not isinstance(totals(BatchSource(spark, tmp_path / "in2", INPUT)), StatefulStream)
    keyed = source.frame().groupBy("key")
    pandas = keyed.transformWithStateInPandas(Totals(), TOTALS, "Update", "None")
    assert isinstance(pandas, StatefulStream)
    session.conf.set("spark.statelog.delivry", "direct")
    with pytest.raises(InvalidOptionsError, match="did you mean 'delivery'"):
        totals(source)
    with pytest.raises(InvalidOptionsError, match="did you mean 'delivery'"):
        enable(session)

    session.conf.unset("spark.statelog.delivry")
    session.conf.set(LOCATION, "checkpoint")  # beside each query's checkpoint; no name is needed
    run_to_end(totals(source), tmp_path / "y")
    assert committed(tmp_path / "y" / "statelog")
    disable(session)
    disable(session)
    assert sparks_own is GroupedData.transformWithState
    assert not isinstance(totals(source), StatefulStream)


def test_an_enabled_session_takes_rows_where_spark_itself_does_not(session, tmp_path, monkeypatch):
    """As on 4.0, whose GroupedData has the pandas flavour alone."""
    for kind in GroupedData.__mro__:  # it is a base class that has the method
        if "transformWithState" in vars(kind):
            monkeypatch.delattr(kind, "transformWithState")
    source = BatchSource(session, tmp_path / "in", INPUT)
    enable(session)
    grouped = source.frame().groupBy("key")
    other = BatchSource(session.newSession(), tmp_path / "in", INPUT).frame().groupBy("key")
    with pytest.raises(UsageError, match=r"does not have transformWithState: call .*enable"):
        other.transformWithState(Totals(), TOTALS, "Update", "None")
    source.add([(1, 2), (2, 5)])
    stream = grouped.transformWithState(Totals(), TOTALS, "Update", "None")
    assert totals_of([[(1, 2), (2, 5)]])[0] == run(stream, tmp_path / "query")
    disable(session)
    assert not hasattr(GroupedData, "transformWithState")


def test_a_session_made_from_an_enabled_one_warns(session, tmp_path, caplog):
    enable(session)
    session.conf.set(LOCATION, "checkpoint")
    others = [session.newSession() for _ in range(2)]
    disable(others[1])  # says that Spark's own state is meant
    for any_session in (session, *others, *others):
        source = BatchSource(any_session, tmp_path / "in", INPUT)
        grouped = source.frame().groupBy("key")
        stream = grouped.transformWithStateInPandas(Totals(), TOTALS, "Update", "None")
        assert isinstance(stream, StatefulStream) == (any_session is session)
    warnings = [
        record.getMessage() for record in caplog.records if "not enabled" in record.getMessage()
    ]
    assert 1 == len(warnings)
    assert "Call enable(session)" in warnings[0]


@ROWS
def test_a_query_on_sparks_own_state_does_not_go_on_without_it(session, tmp_path):
    source = BatchSource(session, tmp_path / "in", INPUT)
    source.add([(1, 2)])
    with configured(session, ON_ROCKSDB):
        assert [(1, 2, 1)] == run(totals(source), tmp_path / "query")
    enable(session)
    source.add([(1, 3)])
    with pytest.raises(Exception, match="initialState=spark_state"):
        run(totals(source), tmp_path / "query")


@ROWS
def test_observers_see_the_unmodified_queries(session, tmp_path):
    seen: list[BatchProgress] = []
    metrics = Metrics()
    enable(session, on_progress=seen.append, metrics=metrics)
    for name, keys in (("a", 2), ("b", 3)):
        source = BatchSource(session, tmp_path / name / "in", INPUT)
        source.add([(key, 1) for key in range(keys)])
        run(totals(source), tmp_path / name / "query", name)
    assert [2, 3] == [batch.rows for batch in seen if batch.rows]
    assert 5 == metrics.snapshot()["num_records_in"]
    enable(session)
    source.add([(1, 1)])
    run(totals(source), tmp_path / "b" / "query", "b")
    assert 5 == metrics.snapshot()["num_records_in"]
