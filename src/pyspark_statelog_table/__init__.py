"""Make the format `statelog_table`, keyed tables, known to Spark; see `pyspark_statelog`."""

import pyspark_statelog

__all__ = ["DefaultSource"]


class DefaultSource(pyspark_statelog.DefaultSource):
    """
    A keyed table: rows are upserted by their key, and read back with the columns that were written.

    The options of a write are fields of `statelog.spark.table.options.TableOptions`, the options of a read
    fields of `statelog.spark.source.options.SourceOptions`.
    """

    is_table = True

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "statelog_table"
