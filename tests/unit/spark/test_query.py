"""The table of faces, schemas without a JVM, and what `init` declares wrongly."""

import subprocess
import sys
from typing import Any, cast

import pytest
from pyspark.errors import ParseException
from pyspark.sql.types import ArrayType, DecimalType, IntegerType, MapType, StringType, StructType
from tests.support.values.schema_texts import TEXTS

from statelog.errors import InvariantError, UsageError
from statelog.spark import ColumnarProcessor, StatefulProcessor
from statelog.spark.query.ddl import parse_ddl
from statelog.spark.query.declared_state import DriverHandle
from statelog.spark.query.face import _FACES, Face, _face, face_of, pandas_face_of
from statelog.spark.worker.extension import keyed_state


class Rows(StatefulProcessor):
    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any: ...


class Columns(ColumnarProcessor):
    def init(self, handle: Any) -> None: ...

    def process(self, keys: Any, rows: Any, times: Any) -> Any: ...


class Counts(Rows):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for row in rows:
            yield row.amount


class LikeRows:
    """Spark takes a processor without its base class too."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any: ...


@pytest.mark.parametrize("name", _FACES)
def test_a_face_has_the_methods_that_it_names(name: str) -> None:
    face = _face(name)
    assert isinstance(face, Face)
    assert all(callable(getattr(face.processor_type, method)) for method in face.methods)
    assert face.handles_single_keys == (face.test_tables is None)


def test_a_processor_has_the_face_that_its_class_names() -> None:
    assert face_of(Rows()) is face_of(LikeRows()) is _face("rows")
    assert face_of(Columns()) is _face("columns")
    assert pandas_face_of(Rows()) is _face("pandas")


def test_a_face_tells_which_columns_its_processors_read() -> None:
    class Amounts(Columns):
        columns = ("amount",)

    class Text(Columns):
        columns = "amount"

    inputs = ["key", "amount", "note"]
    assert _face("columns").columns_read(Columns(), inputs) is None
    assert _face("columns").columns_read(Amounts(), inputs) == {"amount"}
    assert _face("rows").columns_read(Counts(), inputs) == {"amount"}
    assert _face("pandas").columns_read(Counts(), inputs) is None
    with pytest.raises(UsageError, match=r"Amounts\.columns names amount, which"):
        _face("columns").columns_read(Amounts(), ["key"])
    with pytest.raises(UsageError, match=r"Text\.columns is the string 'amount'.*\['amount'\]"):
        _face("columns").columns_read(Text(), inputs)


def test_columns_are_not_frames_and_not_single_keys() -> None:
    with pytest.raises(UsageError, match="Columns is a ColumnarProcessor: pass it to"):
        pandas_face_of(Columns())
    with pytest.raises(InvariantError, match="Columns is not called key by key"):
        keyed_state(Columns(), cast("Any", None))


def test_the_engine_and_a_worker_of_rows_load_no_extension() -> None:
    code = (
        "import sys; import statelog.spark.api, statelog.spark.worker.task; "
        "from statelog.spark.query.face import face_of; face_of(object()); "
        "print([name for name in sys.modules if name.startswith('statelog.extensions')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]" == run.stdout.strip()


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
