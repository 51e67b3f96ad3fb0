"""A state variable that `init` asks for and then deletes is refused on use, as on Spark."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row

from statelog.errors import ProcessorError, UsageError
from statelog.spark import StatefulProcessor
from statelog.testing import ProcessorTester

Use = Callable[[Any], Any]
USES: list[tuple[str, Use, str]] = [
    ("value", lambda state: state.exists(), "Error checking value state exists: "),
    ("value", lambda state: state.get(), "Error getting value state: "),
    ("value", lambda state: state.update((1,)), "Error updating value state: "),
    ("value", lambda state: state.clear(), "Error clearing value state: "),
    ("list", lambda state: state.exists(), "Error checking value state exists: "),
    ("list", lambda state: state.appendValue((1,)), "Error updating value state: "),
    ("list", lambda state: state.get(), "Error using list state: "),
    ("map", lambda state: state.updateValue((1,), (1,)), "Error updating map state value: "),
    ("map", lambda state: state.getValue((1,)), "Error getting value: "),
    ("map", lambda state: state.iterator(), "Error using map state: "),
    ("reducing", lambda state: state.add((1,)), "Error getting value state: "),
]


def ask(handle: Any, kind: str, name: str) -> Any:
    if kind == "value":
        return handle.getValueState(name, "n int")
    if kind == "list":
        return handle.getListState(name, "n int")
    if kind == "map":
        return handle.getMapState(name, "k int", "n int")
    return handle.getReducingState(name, "n int", lambda first, other: first)


class Deleting(StatefulProcessor):
    """Asks for a variable, deletes it, and may ask again."""

    def __init__(self, kind: str, use: Use, again: str = "") -> None:
        self.kind, self.use, self.again = kind, use, again

    def init(self, handle: Any) -> None:
        self.deleted = ask(handle, self.kind, "gone")
        self.other = handle.getValueState("other", "n int")
        handle.deleteIfExists("gone")
        handle.deleteIfExists("never there")
        self.new = ask(handle, self.again, "gone") if self.again else None

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (n,) = self.other.get() or (0,)
        self.other.update((n + 1,))
        try:
            self.use(self.deleted)
        except PySparkRuntimeError as error:
            assert isinstance(error, UsageError)
            yield Row(said=str(error), n=n, message=error.getMessage())
        else:
            yield Row(said="", n=n, message="")


@pytest.mark.parametrize(("kind", "use", "words"), USES)
@pytest.mark.parametrize("again", ["", "value", "list"])
def test_a_variable_that_init_deleted_is_rejected_on_use(
    kind: str, use: Use, words: str, again: str
) -> None:
    tester = ProcessorTester(Deleting(kind, use, again))
    for n in range(2):
        (row,) = tester.test("a", [Row(x=1)])
        assert row.said.startswith(words + "state 'gone' was deleted by deleteIfExists() in init()")
        assert row.n == n  # the others are there
        assert row.message


class AskingAgain(Deleting):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        before = self.new.exists()
        self.new.update((1,))
        yield Row(before=before, now=self.new.get())


def test_a_variable_asked_for_after_its_deletion_begins_empty() -> None:
    tester = ProcessorTester(AskingAgain("list", lambda state: None, "value"))
    for _ in range(2):
        assert tester.test("a", [Row(x=1)]) == [Row(before=False, now=(1,))]


class Changing(StatefulProcessor):
    """Asks for a different variable in tasks than on the driver."""

    def init(self, handle: Any) -> None:
        on_driver = type(handle).__name__ == "DriverHandle"
        self.state = handle.getValueState("one" if on_driver else "two", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        return iter(())


def test_a_variable_that_the_driver_does_not_know_of_fails_in_init() -> None:
    message = r"Changing\.init failed .*'two' in a task, but did not ask"
    with pytest.raises(ProcessorError, match=message):
        ProcessorTester(Changing()).test("a", [])
