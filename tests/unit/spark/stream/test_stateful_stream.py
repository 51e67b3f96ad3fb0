"""What can be said of the surface on Spark without a session."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, GroupedData
from tests.support.spark.versions import not_offered

from statelog.errors import UsageError
from statelog.spark import disable, transform_with_state
from statelog.spark.api import client_of
from statelog.spark.driver.failures import is_interruption
from statelog.spark.rows import spark_versions
from statelog.spark.rows.spark_versions import offered
from statelog.spark.stream.stateful_stream import RECORDED, REFUSED, SHOWN, StatefulStream

OWN = {
    "groupBy": "for a further stateful operator", "groupby": "the same", "isStreaming": "it is true",
    "observe": "values for each micro-batch", "na": "goes through fillna, dropna and replace",
    "sparkSession": "the session", "transform": "calls the function", "writeStream": "the writer",
}  # fmt: skip


def test_every_method_of_a_frame_is_recorded_shown_or_refused() -> None:
    public = {name for name in dir(DataFrame) if not name.startswith("_")}
    classified = {*RECORDED, *SHOWN, *REFUSED, *OWN}
    assert set() == public - classified
    assert set() == {*offered(DataFrame, classified)} - public - {"__arrow_c_stream__"}
    assert len(RECORDED) + len(SHOWN) + len(REFUSED) == len({*RECORDED, *SHOWN, *REFUSED})


@pytest.mark.parametrize("name", sorted(offered(DataFrame, REFUSED)))
def test_methods_that_cannot_work_are_rejected_by_name(name: str) -> None:
    stream = object.__new__(StatefulStream)
    with pytest.raises(UsageError, match=f"^{name} cannot follow a stateful operator: .*"):
        getattr(stream, name)()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "union",
            "cannot union a stream with a batch frame.*combine the streams before the operator",
        ),
        ("unionByName", "Spark cannot union a stream with a batch frame"),
        ("exists", "Spark does not allow streams in a subquery"),
        ("scalar", "Spark does not allow streams in a subquery"),
        ("limit", "it needs Spark's own state"),
        ("sort", "it needs all rows"),
    ],
)
def test_the_reason_is_the_true_one(name: str, reason: str) -> None:
    if not offered(DataFrame, [name]):
        not_offered(name)
    stream = object.__new__(StatefulStream)
    with pytest.raises(UsageError, match=reason):
        getattr(stream, name)()


def on_connect(name: str, module: str, base: type = object) -> Any:
    """Return an object of a class that could be Spark Connect's, which needs grpc to import."""
    return type(name, (base,), {"__module__": module})()


def test_an_ungrouped_frame_of_connect_is_rejected() -> None:
    session = on_connect("SparkSession", "pyspark.sql.connect.session")
    processor: Any = None
    with pytest.raises(UsageError, match=r"takes a grouped frame.*connect\.session\.SparkSession"):
        transform_with_state(session, processor, "a int")


def test_a_session_of_connect_is_refused_on_spark_3_5(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_versions, "SPARK", (3, 5))
    session = on_connect("SparkSession", "pyspark.sql.connect.session")
    message = r"^a session of Spark Connect is not available on Spark 3\.5: it requires Spark 4\.0 or later"
    for call in (client_of, disable):
        with pytest.raises(UsageError, match=message):
            call(session)


def test_an_ungrouped_frame_is_rejected() -> None:
    anything: Any = [1, 2]
    with pytest.raises(UsageError, match=r"takes a grouped frame.*not builtins\.list"):
        transform_with_state(anything, anything, "a int")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"outputMode": "at"},
            'outputMode must be one of "Append", "Update", "Complete", not .at.',
        ),
        ({"timeMode": "Lunch"}, 'timeMode must be one of "None", "ProcessingTime", "EventTime"'),
        ({"outputMode": 3}, "outputMode must be one of"),
        ({"stateLocaton": "x"}, "not have the argument stateLocaton; did you mean 'stateLocation'"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    grouped: Any = object.__new__(GroupedData)
    with pytest.raises(UsageError, match=message):
        transform_with_state(grouped, grouped, "a int", **arguments)


@pytest.mark.parametrize(
    "text",
    [
        "java.lang.InterruptedException: sleep",
        "calling readArrowStreamFromFile: java.nio.channels.ClosedByInterruptException",
        "[SPARK_JOB_CANCELLED] Job 3 cancelled",
    ],
)
def test_an_interruption_is_known_for_a_stop(text: str) -> None:
    assert is_interruption(RuntimeError(text))
    assert not is_interruption(RuntimeError("the sink is full"))
