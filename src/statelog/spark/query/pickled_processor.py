"""Pickle a processor as Spark does to send it to the workers."""

from __future__ import annotations

from pyspark import cloudpickle

from statelog.errors import UsageError
from statelog.spark.query.columnar_processor import AnyProcessor, ColumnarProcessor


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
