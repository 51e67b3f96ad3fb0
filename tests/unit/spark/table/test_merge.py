"""The order of the rows of one key in a keyed table."""

import math
import warnings

import numpy as np
import pyarrow as pa

from statelog.spark.table import merge


def test_nulls_and_then_nans_are_the_oldest_without_a_warning() -> None:
    parents = np.array([1, 0, 1, 1, 0, 1], np.int64)
    sequence = pa.array([2.0, 5.0, math.nan, None, -1.0, -math.inf])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        order = merge._in_sequence(parents, sequence)
        whole = merge._in_sequence(parents, pa.array([2, 5, 1, None, -1, 0]))
    assert order.tolist() == [4, 1, 3, 2, 5, 0]
    assert whole.tolist() == [4, 1, 3, 5, 2, 0]
