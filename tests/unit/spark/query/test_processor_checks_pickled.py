"""How processors are pickled, and what cannot be."""

from typing import Any

import pytest
from pyspark.core.broadcast import _from_id
from tests.spark.processors import Totals

from statelog.errors import UsageError
from statelog.spark.query.processor_checks import copy_of


class Variable:
    """Is pickled as a broadcast variable is."""

    def __reduce__(self) -> Any:
        return _from_id, (7,)


def test_a_copy_has_the_attributes_of_the_processor() -> None:
    copy: Any = copy_of(Totals(poison=7))
    assert isinstance(copy, Totals)
    assert 7 == copy.poison


def test_a_broadcast_variable_is_rejected_with_what_to_do() -> None:
    processor: Any = Totals()
    processor.table = Variable()
    with pytest.raises(
        UsageError, match=r"Totals contains a broadcast variable.*variable\.value.*init"
    ):
        copy_of(processor)
