"""Only `spark/jvm` and one extension ask Spark's JVM, and only one module asks for a version."""

import re

from tests.house.sources import ROOT, SRC, text_of

STATELOG = SRC / "statelog"
EXTENSION = "extensions/columns/aggregation/pre_aggregation.py"
GATEWAY = re.compile(
    r"\bjvm_of\(|^from py4j|^import py4j|\._j[a-zA-Z]+\b|[\"']_j[a-z]+[\"']|\._gateway\b", re.M
)
LATER = re.compile(
    r"^\s*from pyspark\.sql(?:\.classic\S*|\.streaming\.stateful_processor| import classic| "
    r"import .*\bdatasource|\.datasource|\.streaming import .*StatefulProcessor)\b",
    re.M,
)
"""Imports of what Spark 3.5 does not have."""
VERSION = re.compile(r"pyspark\.__version__|\bSPARK\b\s*(?:[<>=!]|\[)|\.version\b\s*[<>=]")


def modules(pattern: re.Pattern[str]) -> set[str]:
    """Return the modules of statelog.spark, and the extensions, in which *pattern* occurs."""
    paths = [path for name in ("spark", "extensions") for path in (STATELOG / name).rglob("*.py")]
    names = {
        path.relative_to(STATELOG).as_posix() for path in paths if pattern.search(text_of(path))
    }
    return {name.removeprefix("spark/") for name in names}


def test_only_one_package_asks_the_jvm() -> None:
    assert {"jvm"} == {path.split("/")[0] for path in modules(GATEWAY) - {EXTENSION}}


def test_the_modules_that_ask_the_jvm_are_listed_with_the_reason() -> None:
    page = (ROOT / "docs" / "contributing" / "spark-jvm.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    listed = {path for row in rows for path in re.findall(r"^\| `(\S+?)`", row)}
    assert listed == modules(GATEWAY)


def test_only_one_module_asks_for_the_version_of_spark() -> None:
    assert {"rows/spark_versions.py"} == modules(VERSION)


def test_what_spark_3_5_lacks_is_imported_where_it_is_replaced_or_not_used_there() -> None:
    # Spark imports the data source itself, from 4.0 on; Connect is refused before.
    from_4_0 = ("extensions/connect/", "extensions/spark_source/")
    importing = {path for path in modules(LATER) if not path.startswith(from_4_0)}
    assert {"rows/spark_versions.py", "jvm/frames.py", "jvm/python_job.py"} == importing
