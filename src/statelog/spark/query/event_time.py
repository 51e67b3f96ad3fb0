"""Find and check the columns with event time."""

from __future__ import annotations

from pyspark.sql.types import StructField, StructType, TimestampType

from statelog.errors import UsageError

_WATERMARK_KEY = "spark.watermarkDelayMs"


def event_time_column(schema: StructType) -> str | None:
    """
    Return the column with the watermark, or None.

    Args:
        schema: Schema of the input.

    Raises:
        UsageError: Several columns have a watermark, or another column has the same name.
    """
    names = [field.name for field in schema.fields if _WATERMARK_KEY in field.metadata]
    if not names:
        return None
    if len(names) > 1 or schema.names.count(names[0]) > 1:
        raise UsageError(
            f"exactly one event time column is needed; these have a watermark: {', '.join(names)}, in "
            f"({', '.join(schema.names)}). Drop or rename the others before groupBy"
        )
    return names[0]


def check_output_column(name: str, output: StructType, *, has_watermark: bool) -> None:
    """
    Check the argument `eventTimeColumnName`.

    Raises:
        UsageError: There is no watermark, or the output has no such timestamp column.
    """
    if not has_watermark:
        raise UsageError(
            f"eventTimeColumnName={name!r}: a watermark needs to be defined first; call "
            "withWatermark on the input"
        )
    if name not in output.names or not isinstance(output[name].dataType, TimestampType):
        raise UsageError(
            f"eventTimeColumnName={name!r} is no timestamp column of the output "
            f"({output.simpleString()})"
        )


def with_event_time(output: StructType, name: str, source: StructType) -> StructType:
    """
    Return *output* with its event time marked, as the column with the watermark of a frame is.

    Args:
        output: Schema of the output.
        name: The column with the event time.
        source: Schema of the input, whose delay is carried over.
    """
    delays = [one.metadata[_WATERMARK_KEY] for one in source if _WATERMARK_KEY in one.metadata]
    mark = {_WATERMARK_KEY: max(delays, default=0)}
    return StructType(
        [
            StructField(one.name, one.dataType, one.nullable, {**one.metadata, **mark})
            if one.name == name
            else one
            for one in output
        ]
    )
