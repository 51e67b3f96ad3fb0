"""
The demonstration's job with rows that differ whenever they are computed.

Run as a program, as `python -m statelog.spark.demo` is.  A batch that is computed again instead of
being redelivered shows by its tokens.
"""

import datetime as dt
import os
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import TimerValues

from statelog.spark.demo import main
from statelog.spark.demo_job import OUTPUT, CustomerTotals


class RestlessTotals(CustomerTotals):
    """Customer totals with a token in each row that no two computations share."""

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        for row in super().handleInputRows(key, rows, timerValues):
            yield Row(**row.asDict(), token=os.urandom(8).hex())


if __name__ == "__main__":
    sys.exit(
        main(
            sys.argv[1:],
            processor=RestlessTotals(dt.timedelta(minutes=30)),
            output=f"{OUTPUT}, token string",
        )
    )
