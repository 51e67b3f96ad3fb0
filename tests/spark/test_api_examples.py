"""Every name of the front row of the API has an example, and it runs."""

import functools
import importlib
import inspect
import re
import sys
import textwrap
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor, StreamingQuery
from tests.house.sources import ROOT
from tests.support.spark.streams import ON_ROCKSDB, configured, until

import statelog
import statelog.spark
import statelog.spark.functions
import statelog.testing

FOLDER = "s3://bucket"


class Totals(StatefulProcessor):
    def init(self, handle):
        self.total = handle.getValueState("total", "total double")

    def handleInputRows(self, key, rows, timerValues):
        total = (self.total.get() or (0.0,))[0] + sum(row.amount for row in rows)
        self.total.update((total,))
        yield Row(customer=key[0], total=total)


class ChangedTotals(Totals):
    pass


class PandasTotals(Totals):
    def handleInputRows(self, key, rows, timerValues):
        for frame in rows:
            yield pd.DataFrame({"customer": [key[0]], "total": [frame.amount.sum()]})


def write(frame: DataFrame, batch_id: int) -> None:
    frame.collect()


def example(value: object) -> str:
    """Return the code of the section `Example` of a docstring; "" without one."""
    section = re.search(
        r"^Example:\n((?:    .*\n|\n)+)", f"{inspect.getdoc(value)}\n", re.MULTILINE
    )
    return "" if section is None else textwrap.dedent(section[1])


@functools.cache
def front_row() -> dict[str, object]:
    """Return the functions of the API by task, and the classes that a user begins with."""
    names = {f"{module.__name__}.{name}": getattr(module, name) for module, name in _names()}
    classes = ("statelog.testing.ProcessorTester", "statelog.spark.ColumnarProcessor")
    tools_of_others = ("statelog.checkpoint.", "statelog.exporters.")
    elsewhere = ("statelog.publish", "statelog.unfreeze")  # need a catalog, and frozen keys
    return {
        name: value
        for name, value in names.items()
        if (inspect.isroutine(value) or name in classes)
        and not name.startswith((*tools_of_others, *elsewhere))
    }


def _names() -> Any:
    sys.path.append(str(ROOT / "tools"))
    try:
        return importlib.import_module("reference")._names_by_task()
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_every_name_of_the_front_row_has_an_example():
    assert len(front_row()) > 35
    assert [] == [name for name, value in front_row().items() if not example(value)]


def wait(query: StreamingQuery) -> None:
    """Wait until a query has read rows, and is done with all that there are; stop it."""
    until(lambda: query.exception() or any(p.numInputRows for p in query.recentProgress), "rows")
    query.processAllAvailable()
    query.stop()


@pytest.fixture(autouse=True)
def settings(spark):
    """What Spark's own operator needs, and the recording that some examples read."""
    with configured(spark, ON_ROCKSDB | {"spark.statelog.record.share": "1.0"}):
        yield


@pytest.fixture
def names(spark, tmp_path):
    """The names that the examples use, and a query of Spark's own that has ended."""
    schema = "customer string, amount double, at timestamp"
    rows = spark.sql(
        "SELECT * FROM VALUES ('c1', 10.0D), ('c2', -5.0D), ('c1', 2.5D), ('c3', 1.0D) "
        "AS t(customer, amount)"
    ).selectExpr("customer", "amount", "current_timestamp() AS at")
    rows.coalesce(1).write.json(f"{tmp_path}/in")
    events = spark.readStream.schema(schema).json(f"{tmp_path}/in")
    old = events.groupBy("customer").transformWithState(
        Totals(), "customer string, total double", "Update", "none"
    )
    writer = old.writeStream.outputMode("update").foreachBatch(write)
    wait(writer.option("checkpointLocation", f"{tmp_path}/queries/old").start())
    public = {name: getattr(statelog.spark, name) for name in statelog.spark.__all__}
    here = (Totals, ChangedTotals, PandasTotals, write, Row)
    return {
        **public,
        **{item.__name__: item for item in here},
        "F": statelog.spark.functions,
        "np": np,
        "ProcessorTester": statelog.testing.ProcessorTester,
        "statelog": statelog,
        "spark": spark,
        "events": events,
    }


FIRST = ("statelog.spark.transform_with_state", "statelog.tag")
LAST = ("statelog.untag", "statelog.edit", "statelog.forget")
"""What makes the state that the others read comes first, what changes it comes last."""


def test_the_examples_run(spark, names, tmp_path):
    everything = front_row()
    between = [name for name in everything if name not in FIRST + LAST]
    try:
        for name in (*FIRST, *between, *LAST):
            code = example(everything[name]).replace(FOLDER, str(tmp_path))
            names.pop("query", None)
            exec(compile(code, f"<example of {name}>", "exec"), names)
            if name == "statelog.tag":  # then the query goes on
                rows = spark.sql("SELECT 'c1' AS customer, 1.0D AS amount")
                rows.coalesce(1).write.mode("append").json(f"{tmp_path}/in")
                wait(names["writer"].foreachBatch(write).start())
            names["Totals"] = Totals  # the example of a columnar one has this name
            if "query" in names:
                wait(names["query"])
    finally:
        statelog.spark.disable(spark)
