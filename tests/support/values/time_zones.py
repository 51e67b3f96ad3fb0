"""Time zones of sessions, and the Arrow columns that Spark makes in them."""

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from statelog.spark.rows.spark_versions import known_arguments

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]
"""Without daylight saving, and with it: Lord Howe moves its clocks by half an hour."""


def in_session_types(table: pa.Table, schema: StructType, zone: str) -> pa.Table:
    """Return a table in the types in which a session with this time zone sends it."""
    return table.cast(known_arguments(to_arrow_schema, timezone=zone)(schema))


_MINUTE_US = 60_000_000
_REPEATED = {
    "UTC": 1_729_987_200,
    "Europe/Berlin": 1_729_987_200,  # 2024-10-27 00:00 UTC, 02:00 in summer
    "America/New_York": 1_730_610_000,  # 2024-11-03 05:00 UTC
    "Australia/Lord_Howe": 1_712_413_800,  # 2024-04-06 14:30 UTC: its clocks go back half an hour
}
REPEATED_HOURS = {
    zone: [start * 1_000_000 + at * 15 * _MINUTE_US for at in range(9)]
    for zone, start in _REPEATED.items()
}
"""By zone: moments in microseconds, of which several have the same local time."""
