"""Schemas from text without a JVM; tests/spark/test_migration.py asks Spark about the same texts."""

import pytest
from pyspark.sql.types import ArrayType, DecimalType, IntegerType, MapType, StringType
from tests.support.values.schema_texts import TEXTS

from statelog.errors import UsageError
from statelog.spark.query.ddl import parse_ddl


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
