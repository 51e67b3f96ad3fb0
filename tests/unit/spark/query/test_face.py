"""The table of faces: each line can be used, and one that is not used is not loaded."""

import subprocess
import sys
from typing import Any, cast

import pytest

from statelog.errors import InvariantError, UsageError
from statelog.spark import ColumnarProcessor, StatefulProcessor
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
