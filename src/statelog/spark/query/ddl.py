"""
Parse DDL text without a Spark session.

Spark parses `"n long, tags array<string>"` in the JVM; a test of a processor has none.  This parser
supports the part of Spark's grammar that schemas of state and rows need.
Source: Spark's SqlBaseParser grammar, rules colTypeList and dataType.  Deviations: collations,
defaults and generated columns are not read; a `timestamp` always has a time zone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from pyspark.sql import types as T  # noqa: N812

from statelog.errors import UsageError

_TOKEN: Final = re.compile(
    r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([\w-]+)|([<>(),:]))"
)
_SIMPLE: Final[dict[str, Callable[[], T.DataType]]] = {
    "boolean": T.BooleanType,
    "tinyint": T.ByteType,
    "byte": T.ByteType,
    "smallint": T.ShortType,
    "short": T.ShortType,
    "int": T.IntegerType,
    "integer": T.IntegerType,
    "bigint": T.LongType,
    "long": T.LongType,
    "float": T.FloatType,
    "real": T.FloatType,
    "double": T.DoubleType,
    "date": T.DateType,
    "timestamp": T.TimestampType,
    "timestamp_ltz": T.TimestampType,
    "timestamp_ntz": T.TimestampNTZType,
    "string": T.StringType,
    "binary": T.BinaryType,
    "void": T.NullType,
}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_DAY_TIME: Final = ("day", "hour", "minute", "second")
_YEAR_MONTH: Final = ("year", "month")


def parse_ddl(text: str) -> T.StructType:
    """Return the schema that *text* describes."""
    return _Parser(text).schema()


class _Parser:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._position = 0

    def _split(self, text: str) -> list[str]:
        tokens = []
        position = 0
        end = len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._failed(f"{text[position:].strip()[:20]!r} is not valid")
            tokens.append(match.group().strip())
            position = match.end()
        return tokens

    def schema(self) -> T.StructType:
        """Parse the whole text as a list of columns or as `struct<...>`."""
        if self._peek() == "struct" and self._tokens[1:2] == ["<"]:
            self._take("struct", "<")
            fields = self._fields(">")
            self._expect(">")
        else:
            fields = self._fields("")
        if self._position < len(self._tokens):
            raise self._failed(f"unexpected {self._tokens[self._position]!r}")
        return T.StructType(fields)

    def _peek(self) -> str:
        return self._tokens[self._position].lower() if self._position < len(self._tokens) else ""

    def _next(self) -> str:
        if self._position == len(self._tokens):
            raise self._failed("unexpected end")
        self._position += 1
        return self._tokens[self._position - 1]

    def _take(self, *words: str) -> bool:
        """Consume *words* if they come next."""
        coming = [
            token.lower() for token in self._tokens[self._position : self._position + len(words)]
        ]
        if coming != list(words):
            return False
        self._position += len(words)
        return True

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise self._failed(f"{token!r} is missing before {self._peek()!r}")

    def _fields(self, end: str) -> list[T.StructField]:
        fields: list[T.StructField] = []
        if self._peek() == end:
            return fields
        while True:
            name = self._next()
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            elif not re.fullmatch(r"[\w-]+", name):
                raise self._failed(f"expected a column name, not {name!r}")
            self._take(":")
            kind = self._type()
            nullable = not self._take("not", "null")
            metadata = {"comment": self._next()[1:-1]} if self._take("comment") else None
            fields.append(T.StructField(name, kind, nullable, metadata))
            if not self._take(","):
                return fields

    def _numbers(self) -> list[int]:
        """Read an optional list of numbers in parentheses."""
        numbers: list[int] = []
        if self._take("("):
            while True:
                token = self._next()
                if not token.isdigit():
                    raise self._failed(f"expected a number, not {token!r}")
                numbers.append(int(token))
                if not self._take(","):
                    break
            self._expect(")")
        return numbers

    def _type(self) -> T.DataType:
        name = self._next().lower()
        if name in _SIMPLE:
            return _SIMPLE[name]()
        if name in _DECIMALS:
            return T.DecimalType(*self._numbers())
        if name in ("char", "character", "varchar"):
            length = self._numbers()
            if len(length) != 1:
                raise self._failed(f"{name} requires a length")
            return T.VarcharType(*length) if name == "varchar" else T.CharType(*length)
        if name == "interval":
            return self._interval()
        if name not in ("array", "map", "struct"):
            raise self._failed(f"the type {name!r} is unknown")
        self._expect("<")
        kind: T.DataType
        if name == "array":
            kind = T.ArrayType(self._type())
        elif name == "map":
            key = self._type()
            self._expect(",")
            kind = T.MapType(key, self._type())
        else:
            kind = T.StructType(self._fields(">"))
        self._expect(">")
        return kind

    def _interval(self) -> T.DataType:
        start = self._next().lower()
        end = self._next().lower() if self._take("to") else start
        for units, kind in (
            (_DAY_TIME, T.DayTimeIntervalType),
            (_YEAR_MONTH, T.YearMonthIntervalType),
        ):
            if start in units and end in units:
                return kind(units.index(start), units.index(end))
        raise self._failed(f"the interval {start} to {end} does not exist")

    def _failed(self, why: str) -> UsageError:
        return UsageError(
            f"the schema {self._text!r:.200} cannot be parsed: {why}. Write it as in "
            "'id long, total decimal(10,2), tags array<string>'"
        )
