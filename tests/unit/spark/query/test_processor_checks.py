"""A processor that can never output a row is warned of at the call, and no other one is."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from textwrap import dedent, indent
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.core.broadcast import _from_id
from pyspark.sql import Row
from tests.support.spark.processors import Totals

from statelog.errors import UsageError
from statelog.spark import ColumnarProcessor, StatefulProcessor
from statelog.spark.query.processor_checks import check_signatures, copy_of, missing_yields

COLUMNS = ["id", "total"]
ROWS = [Row(id=1, total=2)]


class Base(StatefulProcessor):
    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        yield from ROWS

    def close(self) -> None: ...


def processor(**methods: Any) -> Any:
    return type("Totals", (Base,), methods)()


def missing(processor: Any, time_mode: str = "none", *, initial: bool = False) -> list[str]:
    return missing_yields(processor, COLUMNS, time_mode, has_initial=initial)


def method_of(body: str, start: str = "def") -> Any:
    names = {"Row": Row, "ROWS": ROWS, "nullcontext": nullcontext}
    exec(f"{start} method(self, key, rows, times):\n{indent(dedent(body), '    ')}\n", names)
    return names["method"]


forgotten = method_of("""
    for row in rows:
        if row.id == 3: return
        Row(id=row.id, total=row.total)""")
NONE_IN_BRANCHES = """
    with nullcontext():
        if key: return None
    try: self.total = len(list(rows))
    finally: self.key = key
    return None"""


@pytest.mark.parametrize("method", [forgotten, method_of(NONE_IN_BRANCHES)])
def test_a_method_that_returns_only_none(method: Callable[..., Any]) -> None:
    [message] = missing(processor(handleInputRows=method))
    assert message == (
        "Totals.handleInputRows has no `yield` and returns None, so no row is ever output, though the "
        "output has the columns id, total: write `yield` in front of each output row, or `return "
        "iter(())` if no row is intended"
    )
    assert not missing_yields(processor(handleInputRows=method), [], "none", has_initial=False)


def wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any) -> Any:
        return method(*args)

    return call


MAY_RETURN_ROWS = {
    "a list": method_of("rows_out = [Row(id=1, total=1)]\nreturn rows_out"),
    "a branch": method_of("if not key: return None\nreturn iter(ROWS)"),
    "a choice": method_of("return ROWS if key else None"),
    "and": method_of("return rows and None"),
    "in with": method_of("with nullcontext(): return ROWS"),
    "before finally": method_of("try: return list(rows)\nfinally: self.key = key"),
    "only raises": method_of("raise NotImplementedError"),
    "a generator that ends early": method_of("return\nyield"),
    "asynchronous": method_of("return None", "async def"),
    "wrapped": wrapped(forgotten),
    "partial": functools.partialmethod(forgotten),
    "a mock": Mock(),
    "a built-in function": len,
    "a lambda": lambda self, key, rows, times: ROWS,
}


@pytest.mark.parametrize("method", MAY_RETURN_ROWS.values(), ids=MAY_RETURN_ROWS)
def test_methods_that_may_return_rows_are_left_alone(method: Any) -> None:
    assert not missing(processor(handleInputRows=method))


def of_timer(self: Any, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
    yield from ROWS


def silent_timer(self: Any, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
    Row(id=key[0], total=1)


def test_rows_of_timers_are_output_where_timers_fire() -> None:
    with_timers = processor(handleInputRows=forgotten, handleExpiredTimer=of_timer)
    assert not missing(with_timers, "eventtime")
    assert missing(with_timers, "none")
    assert missing(processor(handleInputRows=forgotten), "processingtime")
    both = processor(handleInputRows=forgotten, handleExpiredTimer=silent_timer)
    [message] = missing(both, "processingtime")
    assert message.startswith(
        "Totals.handleInputRows and handleExpiredTimer have no `yield` and return None, so no row"
    )
    assert not missing(processor(handleExpiredTimer=silent_timer), "processingtime")


def test_a_generator_for_initial_state_never_runs() -> None:
    def initial(self: Any, key: Any, initialState: Any, timerValues: Any) -> Any:
        self.total.update((1,))
        yield from ()

    [message] = missing(processor(handleInitialState=initial), initial=True)
    assert message == (
        "Totals.handleInitialState has a `yield`, so its body never runs and the initial state is "
        "lost: remove the `yield`, because this method cannot output rows"
    )
    assert not missing(processor(handleInitialState=initial))
    assert not missing(processor(handleInitialState=silent_timer), initial=True)


def test_columnar_processors() -> None:
    class Totals(ColumnarProcessor):
        def init(self, handle: Any) -> None: ...

        def process(self, keys: Any, rows: Any, times: Any) -> Any:
            self.total.put(keys, rows)  # type: ignore[attr-defined]

        def initialize(self, keys: Any, rows: Any, times: Any) -> Any:
            yield from ()

    class Silent(Totals):
        def process(self, keys: Any, rows: Any, times: Any) -> Any:
            return [rows]

    assert [message.partition(" has ")[0] for message in missing(Totals(), initial=True)] == [
        "Totals.process",
        "Totals.initialize",
    ]
    assert not missing(Silent())


# --- signatures -----------------------------------------------------------------------------------

WRONG = [
    ("handleInputRows", lambda self, key, rows: iter(()), "none", False, "timerValues"),
    ("handleExpiredTimer", lambda self, key, timerValues: iter(()), "eventtime", False, "expiredTimerInfo"),
    ("handleInitialState", lambda self, key: None, "none", True, "initialState"),
    ("handleInputRows", lambda self, a, b, c, d: iter(()), "none", False, "missing"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "method", "time_mode", "initial", "missing_parameter"), WRONG)
def test_a_method_with_other_parameters_is_rejected_at_the_start(
    name: str, method: Callable[..., Any], time_mode: str, initial: bool, missing_parameter: str
) -> None:
    with pytest.raises(UsageError, match=rf"\.{name} has the parameters .*{missing_parameter}"):
        check_signatures(processor(**{name: method}), time_mode, has_initial=initial)


@pytest.mark.parametrize(
    "methods",
    [
        {},
        {"handleInputRows": lambda self, *arguments: iter(())},
        {"handleInputRows": lambda self, key, rows, times, more=1: iter(())},
        {"handleInputRows": staticmethod(lambda key, rows, times: iter(()))},
        {"handleInputRows": functools.partial(lambda key, rows, times: iter(()))},
        {"handleInputRows": Mock()},
        {"handleExpiredTimer": lambda self: None},  # never called
        {"handleInitialState": lambda self: None},
    ],
)
def test_a_method_that_can_be_called_is_accepted(methods: dict[str, Any]) -> None:
    check_signatures(processor(**methods), "none", has_initial=False)


def test_a_columnar_processor_has_its_own_methods() -> None:
    class Columns(ColumnarProcessor):
        def init(self, handle: Any) -> None: ...

        def process(self, keys: Any, rows: Any) -> Any:  # type: ignore[override]
            yield rows

    with pytest.raises(UsageError, match=r"Columns\.process .*called with \(keys, rows, times\)"):
        check_signatures(Columns(), "none", has_initial=False)


# --- how a processor is pickled -------------------------------------------------------------------


class BroadcastVariable:
    """Is pickled as a broadcast variable is."""

    def __reduce__(self) -> Any:
        return _from_id, (7,)


def test_a_copy_has_the_attributes_of_the_processor() -> None:
    copy: Any = copy_of(Totals(poison=7))
    assert isinstance(copy, Totals)
    assert 7 == copy.poison


def test_a_broadcast_variable_is_rejected_with_what_to_do() -> None:
    holds_one: Any = Totals()
    holds_one.table = BroadcastVariable()
    with pytest.raises(UsageError, match=r"contains a broadcast variable.*variable\.value.*init"):
        copy_of(holds_one)
