"""
Read the targets of files with plain Spark, in a process that has no statelog.

Usage: python -m tests.campaigns.chaos.sink_reader FOLDER CATALOG FORMAT=PLACE... TABLE=PLACE...; prints one JSON
object: the rows of each place.  A table is read by its name, which a catalog in memory is told anew.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from tests.campaigns.chaos.sink_session import open_session

SCHEMA = "key bigint, total bigint, rows bigint"
SCHEMAS = {"csv": "total bigint, rows bigint, key bigint"}
"""Files of CSV have no names of columns, and the column of their folders comes last."""
ANSWER = "rows: "


def read(spark: SparkSession, source: str, place: str, *, known: bool) -> DataFrame:
    """Return the frame of one target."""
    if not source.startswith("totals"):
        return spark.read.schema(SCHEMAS.get(source, SCHEMA)).format(source).load(place)
    if not known:
        spark.sql(f"create table {source} using parquet location '{place}'")
    return spark.table(source)


def main() -> None:
    folder, catalog, *arguments = sys.argv[1:]
    spark = open_session(Path(folder), catalog)
    rows_of_place = {}
    for argument in arguments:
        source, _, place = argument.partition("=")
        frame = read(spark, source, place, known=catalog == "hive")
        rows_of_place[place] = [
            tuple(row) for row in frame.select("key", "total", "rows").collect()
        ]
    assert "statelog" not in sys.modules
    print(ANSWER + json.dumps(rows_of_place), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
