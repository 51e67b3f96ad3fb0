"""Escape stored names, and errors that contain them, in statelog's log records."""

from __future__ import annotations

import logging
from typing import Final

from statelog.plain_text import one_line

LOGGERS: Final = ("statelog", "statelog.spark")
"""All loggers of statelog.  A filter of a logger does not see the records of others below it."""


class PlainRecords(logging.Filter):
    """Turns each argument of a log record into one line; the message itself is statelog's."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape the arguments of a record, without filtering out any record."""
        if isinstance(record.args, tuple):
            record.args = tuple(map(_plain, record.args))
        return True


_PLAIN_RECORDS: Final = PlainRecords()


def escape_records() -> None:
    """Make statelog's loggers escape their arguments; further calls do nothing."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_PLAIN_RECORDS)


def _plain(argument: object) -> object:
    if argument is None or isinstance(argument, int | float):
        return argument
    return _Line(argument)


class _Line:
    """An argument as one line of text, which is escaped when the record is formatted."""

    def __init__(self, argument: object) -> None:
        self._argument = argument

    def __str__(self) -> str:
        return one_line(str(self._argument))

    def __repr__(self) -> str:
        return one_line(repr(self._argument))
