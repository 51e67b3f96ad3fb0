"""A client that starts a query over what a `BatchSource` has written, and waits to be killed."""

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark.connect.jobs import ConnectJob
from tests.spark.processors import INPUT, TOTALS, Totals
from tests.spark.streams import BatchSource, workers_get_by_value

URL = "STATELOG_TEST_URL"
"""The variable with the address of the server, whose token is on no command line."""

workers_get_by_value("tests.spark.processors")


def main(url: str, folder: str) -> None:
    session = SparkSession.builder.remote(url).getOrCreate()
    source = BatchSource(session, Path(folder) / "in", INPUT)
    job = ConnectJob(source, Path(folder), ["key"], Totals(), TOTALS, {"tasks": 2})
    job.start(trigger={"processingTime": "200 milliseconds"})
    print("started", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(os.environ[URL], *sys.argv[1:])
