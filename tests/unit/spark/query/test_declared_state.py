"""Schemas are parsed without a JVM, and what `init` declares wrongly is named."""

from typing import Any

import pytest
from pyspark.errors import ParseException
from pyspark.sql.types import ArrayType, DecimalType, IntegerType, MapType, StringType, StructType
from tests.support.values.schema_texts import TEXTS

from statelog.errors import UsageError
from statelog.spark.query.ddl import parse_ddl
from statelog.spark.query.declared_state import DriverHandle


def parse(text: str) -> StructType:
    """Raise what Spark raises for text that is not DDL: its message begins with a line break."""
    if "lnog" not in text:
        return parse_ddl(text)
    raise ParseException(
        "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'lnog'. SQLSTATE: 42601 (line 1, pos 2)\n\n"
        "== SQL ==\nn lnog\n--^^^\n"
    )


@pytest.mark.parametrize(
    ("declare", "what"),
    [
        (lambda handle: handle.getValueState("total", "n lnog"), "state 'total'"),
        (lambda handle: handle.getMapState("total", "n lnog", "n int"), "map key of state 'total'"),
    ],
)
def test_a_schema_that_cannot_be_parsed(declare: Any, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        declare(DriverHandle(parse, has_ttl=False))
    (line,) = str(caught.value).splitlines()
    assert f"{what}: 'n lnog' is not a schema: [PARSE_SYNTAX_ERROR] Syntax error at or near" in line


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "needs a name"),
        ("$timers", r"'\$timers' is reserved: .* begin with '\$'"),
        ("key.a", "is reserved"),
        ("key_group", "is reserved: statelog uses key_group"),
        ("taken", "'taken' is used twice"),
    ],
)
def test_a_name_that_cannot_be_used(name: str, message: str) -> None:
    handle = DriverHandle(parse_ddl, has_ttl=False)
    handle.getValueState("taken", "n long")
    with pytest.raises(UsageError, match=message):
        handle.getListState(name, "n long")


@pytest.mark.parametrize(("text", "types"), TEXTS.items())
def test_types(text: str, types: str) -> None:
    assert ", ".join(field.dataType.simpleString() for field in parse_ddl(text)) == types


def test_parts() -> None:
    schema = parse_ddl("`a b``c` decimal(12) NOT NULL COMMENT 'its', m: map<string,array<int>>")
    assert schema.names == ["a b`c", "m"]
    assert schema[0].dataType == DecimalType(12, 0) and not schema[0].nullable
    assert schema[1].dataType == MapType(StringType(), ArrayType(IntegerType()))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("n lng", "the type 'lng' is unknown"),
        ("n", "unexpected end"),
        ("n long total double", "unexpected 'total'"),
        ("n array<int", "'>' is missing"),
        ("n decimal(x)", "expected a number, not 'x'"),
        ("n char", "char requires a length"),
        (", n int", "expected a column name, not ','"),
        ("n interval day to year", "the interval day to year does not exist"),
        ("n int; m int", "'; m int' is not valid"),
    ],
)
def test_text_that_cannot_be_parsed_is_named(text: str, why: str) -> None:
    with pytest.raises(UsageError, match="cannot be parsed") as raised:
        parse_ddl(text)
    assert why in str(raised.value)
