"""A client that starts a query over what a `BatchSource` has written, and waits to be killed."""

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.spark.connect.jobs import connect_job

URL = "STATELOG_TEST_URL"
"""The variable with the address of the server, whose token is on no command line."""


def main(url: str, folder: str) -> None:
    job = connect_job(SparkSession.builder.remote(url).getOrCreate(), Path(folder))
    job.start(trigger={"processingTime": "200 milliseconds"})
    print("started", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(os.environ[URL], *sys.argv[1:])
