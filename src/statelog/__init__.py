"""
statelog: durable, log-structured keyed state.

This package opens a location and operates on it.  Flink's nouns are in `statelog.changelog`, the
pipeline on Spark is in `statelog.spark`.  `__init__.pyi` has the names.
"""

from statelog.first_use import public_names
from statelog.flink_names import name_elsewhere
from statelog.logs import escape_records

__version__ = "0.3.0"

__getattr__, __dir__, _names = public_names(__name__, name_elsewhere)
# A star import does not hide a builtin or a module.
__all__ = [name for name in _names if name not in ("copy", "open")]

# Here, because every program that uses statelog imports this module.
escape_records()
