"""The processors of PySpark's own documentation do on statelog what they do on Spark."""

import doctest
import random
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import PythonException
from pyspark.sql import GroupedData, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import IntegerType, StringType, StructField, StructType
from tests.support.spark.running_count import RunningCountStatefulProcessorFactory
from tests.support.spark.streams import ON_ROCKSDB, BatchSource, Job, configured, run_on_spark
from tests.support.spark.versions import ROWS

from statelog.errors import UsageError
from statelog.spark import transform_with_state, transform_with_state_in_pandas

FLAVOURS: dict[str, tuple[Any, Any]] = {
    "row": (getattr(GroupedData, "transformWithState", None), transform_with_state),
    "pandas": (GroupedData.transformWithStateInPandas, transform_with_state_in_pandas),
}
SENSORS = [("0", 123), ("0", 23), ("1", 33), ("1", 188), ("1", 88)]  # the documentation's
TASKS = (1, 3)  # with a restart in between


def documented(flavour: str) -> tuple[str, dict[str, Any]]:
    """Return the code of a docstring's processor, and the schemas next to it."""
    examples = doctest.DocTestParser().get_examples(FLAVOURS[flavour][0].__doc__)
    names = {
        "IntegerType": IntegerType,
        "Row": Row,
        "StatefulProcessor": StatefulProcessor,
        "StatefulProcessorHandle": StatefulProcessorHandle,
        "StringType": StringType,
        "StructField": StructField,
        "StructType": StructType,
        "pd": pd,
    }
    sources = {example.source.split()[0]: example.source for example in examples}
    for name in ("output_schema", "state_schema"):
        exec(sources[name], names)
    return sources["class"], names


def sensor_processor(flavour: str, *changes: tuple[str, str]) -> tuple[StatefulProcessor, Any]:
    """Return a docstring's processor, with changes of its code, and its output schema."""
    code, names = documented(flavour)
    for old, new in changes:
        assert old in code
        code = code.replace(old, new)
    exec(code, names)
    return names["SimpleStatefulProcessor"](), names["output_schema"]


TIMES = ("handleInputRows(self, key, rows)", "handleInputRows(self, key, rows, timerValues)")
KEY = ("Row(id=key, ", "Row(id=key[0], ")
REPAIRED = {"row": (TIMES, KEY), "pandas": (TIMES,)}


@pytest.fixture
def rocksdb(spark):
    """The session with the state provider that Spark's own operator needs, and one partition."""
    with configured(spark, {"spark.sql.shuffle.partitions": "1", **ON_ROCKSDB}):
        yield spark


@pytest.mark.parametrize("flavour", [pytest.param("row", marks=ROWS), "pandas"])
def test_printed_processors_fail_and_answer_alike(flavour, rocksdb):
    grouped = rocksdb.createDataFrame(SENSORS, "id string, temperature long").groupBy("id")
    wrong = r"takes 3 positional arguments but 4 were given|has the parameters \(key, rows\)"
    broken: list[tuple[list[Any], str]] = [([], wrong)]
    if flavour == "row":
        broken.append(([TIMES], "Expected bytes, got a 'tuple' object"))  # a tuple for a string
    for transform in FLAVOURS[flavour]:
        for changes, message in broken:
            processor, output = sensor_processor(flavour, *changes)
            with pytest.raises((PythonException, UsageError), match=message):
                transform(grouped, processor, output, "Update", "None").collect()
        processor, output = sensor_processor(flavour, *REPAIRED[flavour])
        rows = transform(grouped, processor, output, "Update", "None").collect()
        assert [("0", 2), ("1", 3)] == sorted(map(tuple, rows))


@pytest.mark.parametrize("flavour", [pytest.param("row", marks=ROWS), "pandas"])
def test_sensors_count_over_a_restart(flavour, rocksdb, tmp_path):
    rng = random.Random(f"sensors {flavour}")
    source = BatchSource(rocksdb, tmp_path / "in", "id string, temperature long")
    options = {"transform": FLAVOURS[flavour][1]}
    sensors, output = sensor_processor(flavour, *REPAIRED[flavour])
    factory = RunningCountStatefulProcessorFactory()
    counts = factory.row() if flavour == "row" else factory.pandas()
    jobs = [
        Job(source, tmp_path / "sensors", ["id"], sensors, output.simpleString(), options),
        Job(source, tmp_path / "counts", ["id"], counts, "key string, count long", options),
    ]
    for tasks in TASKS:
        for _ in range(2):
            temperatures = [*range(90, 110), None]
            ids = ["0", "1", "2", "ü", "", None]
            source.add([(rng.choice(ids), rng.choice(temperatures)) for _ in range(30)])
        for job in jobs:
            job.run(tasks=tasks)
    for job in jobs:
        expected = [sorted(rows, key=repr) for rows in run_on_spark(job) if rows]
        assert 2 * len(TASKS) == len(expected)
        assert expected == [sorted(rows, key=repr) for rows in job.take()]
