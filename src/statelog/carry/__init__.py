"""
Change the state of a location from outside of its query, without Spark.

    key_edits      what is set and deleted, by key group, as deltas
    change_writer  deltas as a log handle
    recommit       one checkpoint more, at the same source position
    edit_keys      keys set and deleted from Python
    edit_files     the same from Parquet files
    new_snapshot   a snapshot of what a reader returns
    key_traces     the objects that hold a key
    forget_report  what makes each of them go away
    forget_key     a key removed, from its state and from its objects

`statelog.spark.carry` does the same from frames.
"""

from statelog.carry.edit_keys import edit
from statelog.carry.forget_key import forget
from statelog.carry.forget_report import ForgetReport, KeyTrace
from statelog.carry.key_edits import EditCounts
from statelog.carry.recommit import EditReport

__all__ = ["EditCounts", "EditReport", "ForgetReport", "KeyTrace", "edit", "forget"]
