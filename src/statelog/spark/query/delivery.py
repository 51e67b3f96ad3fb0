"""
How output rows reach the user's sink.

*staged*: the rows are committed with the state and handed to the sink after the commit; a replay
delivers the same rows.  *direct*: the sink evaluates the tasks in one Spark job; the state is
committed after it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

Sink = Callable[[DataFrame, int], Any]


class Delivery(enum.Enum):
    """The two ways of delivering output rows; see docs/explanation/guarantees.md."""

    STAGED = "staged"
    DIRECT = "direct"
