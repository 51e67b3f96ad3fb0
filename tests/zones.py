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
