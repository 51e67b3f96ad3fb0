"""
The two ways to deliver output rows to the user's sink.

*staged*: the driver commits the rows with the state and calls the sink after the commit; a replay
delivers the same rows.  *direct*: the sink evaluates the tasks in one Spark job, and the driver
commits the state after it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from pyspark.sql import DataFrame

Sink = Callable[[DataFrame, int], object]
"""Called with the output of a micro-batch and its batch id; the result is ignored."""


class Delivery(enum.Enum):
    """The two ways of delivering output rows; see docs/explanation/guarantees.md."""

    STAGED = "staged"
    DIRECT = "direct"


class FileOutput(enum.Enum):
    """The two ways of writing files; see docs/how-to/exactly-once-sinks.md."""

    EXACTLY_ONCE = "exactly-once"
    APPEND = "append"
