"""What `init` declares wrongly is named: the state, and what is wrong with it."""

from typing import Any

import pytest
from pyspark.errors import ParseException
from pyspark.sql.types import StructType

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
        (
            lambda handle: handle.getMapState("total", "n lnog", "n long"),
            "map key of state 'total'",
        ),
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
