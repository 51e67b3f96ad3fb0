"""Pickle a processor as Spark does to send it to the workers."""

from __future__ import annotations

from typing import Final

from pyspark import cloudpickle
from pyspark.errors import PySparkException

from statelog.errors import UsageError
from statelog.spark.query.columnar_processor import AnyProcessor, ColumnarProcessor

_BROADCAST: Final = "BROADCAST_VARIABLE_NOT_LOADED"


def copy_of(processor: AnyProcessor) -> AnyProcessor:
    """
    Return a copy of a processor as a worker gets it.

    Raises:
        UsageError: As `pickled`, or it holds a broadcast variable.
    """
    data = pickled(processor)
    try:
        copy: AnyProcessor = cloudpickle.loads(data)
    except PySparkException as error:
        if error.getCondition() != _BROADCAST:
            raise
        raise UsageError(
            f"{type(processor).__name__} holds a broadcast variable, which Spark sends to the workers "
            "with its functions only, not with a processor; its own transformWithState fails with it "
            "too. Keep the value in the processor instead (self.table = variable.value), or load a large "
            "one in init(), for example from a file of spark.sparkContext.addFile by SparkFiles.get(name)"
        ) from error
    return copy


def pickled(processor: AnyProcessor) -> bytes:
    """
    Return a processor as Spark sends it to the workers.

    Raises:
        UsageError: It is a class or no processor, or it cannot be pickled.
    """
    if isinstance(processor, type):
        raise UsageError(
            f"statefulProcessor is the class {processor.__name__}; give an instance: "
            f"{processor.__name__}(...)"
        )
    if not isinstance(processor, ColumnarProcessor) and not (
        callable(getattr(processor, "init", None))
        and callable(getattr(processor, "handleInputRows", None))
    ):
        raise UsageError(
            "statefulProcessor is an instance of a StatefulProcessor or ColumnarProcessor, not "
            f"{processor!r:.100}"
        )
    try:
        data: bytes = cloudpickle.dumps(processor)
    except Exception as error:
        raise UsageError(
            f"{type(processor).__name__} cannot be pickled, so Spark cannot send it to its "
            f"workers: {_unpicklable_attribute(processor)}{error}. Create such objects in init()"
        ) from error
    return data


def _unpicklable_attribute(processor: AnyProcessor) -> str:
    """Return the attribute that cannot be pickled, for a message."""
    for name, value in getattr(processor, "__dict__", {}).items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            return f"attribute {name!r}: "
    return ""
