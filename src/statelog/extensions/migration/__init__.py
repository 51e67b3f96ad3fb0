"""
Move a query between Spark's own state and statelog, in either direction.

    to_spark           a state location as a frame of state, one row for each key, in Parquet; and a
                       checkpointLocation in which Spark's query begins where statelog's ended
    spark_state        Spark's state store as such a frame
    initial_state      a processor that begins with such a frame as its initial state, with Spark's values

docs/how-to/migration.md has complete examples.
"""

from statelog.extensions.migration.initial_state import with_initial_state
from statelog.extensions.migration.spark_state import spark_state
from statelog.extensions.migration.to_spark import spark_checkpoint, to_spark

__all__ = ["spark_checkpoint", "spark_state", "to_spark", "with_initial_state"]
