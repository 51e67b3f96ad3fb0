"""Which columns of its input a processor certainly reads."""

import functools
import importlib.util
import linecache
import sys
from textwrap import dedent, indent
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row

from statelog.errors import InvalidOptionsError, UsageError
from statelog.spark.query.input_columns import columns_read, columns_to_read
from statelog.spark.query.settings import SETTINGS

COLUMNS = ("key", "amount", "at", "name", "window", "count")


CERTAIN = {
    "a loop": ("""
        total = self.total.get() or 0
        for row in rows: total += row.amount
        yield Row(key=key[0], total=total)""", {"amount"}),
    "a field by its name": ("yield Row(names=[row['name'] for row in rows])", {"name"}),
    "rows are counted": ("yield Row(n=sum(1 for _ in rows))", set()),
    "in order": ("""
        events = sorted(rows, key=lambda row: row.at, reverse=True)
        if not events: return
        first = events[0]
        others = events[1:]
        yield Row(first=first.name, of=len(events), rest=sum(event.amount for event in others))""",
        {"at", "name", "amount"}),
    "the newest": ("""
        last = max(list(rows), key=lambda r: (r.at, r.amount))
        yield Row(start=last.window.start)""", {"at", "amount", "window"}),
    "rows are read again": ("""
        rows = list(rows)
        while rows:
            yield Row(name=rows[-1].name)
            break
        yield from (Row(at=row.at) for row in rows if row.amount > 1)""", {"at", "amount", "name"}),
    "a function for a value": ("""
        def total(value): return value * 2
        for row in rows: yield Row(total=total(row.amount))""", {"amount"}),
    "a name that is bound later": ("""
        def moments(): return [row.at for row in batch]
        batch = list(rows)
        yield Row(at=moments())""", {"at"}),
}  # fmt: skip
"""Methods whose reads are certain, and the columns that they read."""


class Private:
    """Its method has a name that Python changes."""

    def handle(self, key, rows, times):
        self.__seen = [row.amount for row in rows]
        yield Row(n=len(self.__seen))


UNCERTAIN = {
    "the row as a dict": "for row in rows: yield Row(**row.asDict())",
    "a row as an argument": "for row in rows: self.add(row)",
    "the rows as an argument": "return self.handle(key, rows)",
    "the rows are returned": "return rows",
    "the rows are output": "yield from rows",
    "a row is unpacked": "for amount, *_ in rows: yield Row(amount=amount)",
    "a field by its position": "for row in rows: yield Row(amount=row[1])",
    "a computed name": "for row in rows: yield Row(amount=row[self.column])",
    "getattr": "for row in rows: yield Row(amount=getattr(row, 'amount', 0))",
    "an unknown name": "for row in rows: yield Row(amount=row.amuont)",
    "a method of the row": "for row in rows: yield Row(n=row.count)",
    "rows are compared": "yield Row(amount=sorted(rows)[0].amount)",
    "rows are compared by a function": "yield Row(amount=max(rows, key=self.rank).amount)",
    "a row is stored": "for row in rows: self.last = row",
    "rows in a list": "yield Row(all=[(row, 1) for row in rows])",
    "a variable that may be something else": """
        last = None
        for row in rows: last = row
        yield Row(amount=last.amount)""",
    "a row of the same name": """
        row = self.first
        yield Row(amount=row.amount)
        for row in rows: yield Row(amount=row.amount)""",
    "rows of the same name": """
        rows = self.filter(rows)
        for row in rows: yield Row(amount=row.amount)""",
    "an imported function of the same name": """
        from builtins import tuple as list
        for row in list(rows): yield Row(amount=row.amount)""",
    "a shadowed function": """
        list = self.list
        for row in list(rows): yield Row(amount=row.amount)""",
    "locals": "for row in rows: yield Row(amount=row.amount, all=locals())",
    "the walrus": "while (row := next(rows)) is not None: yield Row(amount=row.amount)",
    "a default of next": "yield Row(amount=next(rows, self.first).amount)",
    "enumerate": "for n, row in enumerate(rows): yield Row(n=n, amount=row.amount)",
    "a row is deleted": """
        for row in rows:
            yield Row(amount=row.amount)
            del row""",
    "an error of the same name": """
        for row in rows:
            try: yield Row(amount=row.amount)
            except ValueError as row: pass""",
    "a pattern": """
        for row in rows:
            match row:
                case (amount, *_): yield Row(amount=amount)""",
    "a field is assigned": """
        for row in rows:
            row.amount = 1
            yield Row(amount=row.amount)""",
    "an element is assigned": """
        rows = list(rows)
        rows[0] = self.first
        yield Row(amount=rows[0].amount)""",
    "rows are joined": """
        events = self.kept + list(rows)
        yield Row(amount=events[0].amount)""",
    "the row as text": "for row in rows: yield Row(amount=f'{row}')",
    "a key with two arguments": """
        for row in sorted(rows, key=lambda row, other=1: row.at): yield Row(amount=row.amount)""",
    "an argument of the same name": """
        def total(row): return row.anything
        for row in rows: yield Row(amount=row.amount + total(1))""",
}
"""Methods that may read any column."""


def method_of(body: str, arguments: str = "self, key, rows, times") -> Any:
    """Return a method whose source can be read as that of a file."""
    text = f"def handle({arguments}):\n{indent(dedent(body), '    ')}\n"
    file = f"<{body}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"Row": Row}
    exec(compile(text, file, "exec"), namespace)
    return namespace["handle"]


@pytest.mark.parametrize(("body", "columns"), CERTAIN.values(), ids=CERTAIN)
def test_columns_that_are_read(body, columns):
    """The method runs over rows that have the columns of the proof only."""

    class Moment:
        start = 1

    method = method_of(body)
    assert columns_read(method, COLUMNS) == columns
    values = {"key": 1, "amount": 2, "at": 3, "name": "a", "window": Moment, "count": 4}
    state = SimpleNamespace(total=SimpleNamespace(get=lambda: None))
    results = []
    for names in (values, columns):
        rows = [Row(**{name: values[name] for name in values if name in names}) for _ in range(3)]
        results.append(list(method(state, (1,), iter(rows), None)))
    assert results[0] == results[1] != []


def test_columns_that_a_method_with_a_private_name_reads():
    assert columns_read(Private.handle, COLUMNS) == {"amount"}


@pytest.mark.parametrize("body", UNCERTAIN.values(), ids=UNCERTAIN)
def test_a_row_that_may_be_used_otherwise_needs_all_columns(body):
    assert columns_read(method_of(body), COLUMNS) is None


LOOP = "for row in sorted(rows, key=lambda row: row.at): yield Row(amount=row.amount)"


@pytest.mark.parametrize(
    ("arguments", "columns"),
    [
        ("self, key, rows, times", {"at", "amount"}),
        ("self, key, rows, sorted", None),
        ("self, key, *rows", None),
        ("*rows", None),
    ],
)
def test_other_arguments_need_all_columns(arguments, columns):
    assert columns == columns_read(method_of(LOOP, arguments), COLUMNS)


def test_a_decorated_method_needs_all_columns():
    def logged(function):
        @functools.wraps(function)
        def call(self, key, rows, times):
            print([*rows])
            return function(self, key, iter(()), times)

        return call

    class Decorated:
        @logged
        def handle(self, key, rows, times):
            for row in rows:
                yield Row(amount=row.amount)

    assert columns_read(Decorated.handle, COLUMNS) is None


def test_a_variable_of_the_function_around_needs_all_columns():
    list = tuple  # an inner method that names it may not mean the built-in function

    class Inner:
        def handle(self, key, rows, times):
            for row in list(rows):
                yield Row(amount=row.amount)

    assert columns_read(Inner.handle, COLUMNS) is None


def test_source_that_is_not_what_runs_is_not_used(tmp_path):
    """A module that was edited after its import, as in a notebook."""
    path = tmp_path / "edited.py"
    text = (
        "class Edited:\n"
        "    def handle(self, key, rows, times):\n"
        "        for row in rows:\n"
        "            yield {}\n"
    )
    path.write_text(text.format("(row.amount, row.name)"), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("edited", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["edited"] = module
    try:
        spec.loader.exec_module(module)
        assert columns_read(module.Edited.handle, COLUMNS) == {"amount", "name"}
        path.write_text(text.format("(row.amount, row.at)"), encoding="utf-8")
        assert columns_read(module.Edited.handle, COLUMNS) is None
    finally:
        del sys.modules["edited"]


def test_code_without_source_needs_all_columns():
    method = method_of("return iter(())")
    assert columns_read(method, COLUMNS) == set()
    linecache.cache.clear()
    assert columns_read(method, COLUMNS) is None


@pytest.mark.parametrize(
    ("setting", "read_by_processor", "expected"),
    [
        (("at", "key"), {"amount"}, {"at", "key"}),
        ("all", {"amount"}, set(COLUMNS)),
        ("auto", {"amount"}, {"amount"}),
        ("auto", None, set(COLUMNS)),
    ],
)
def test_the_setting_goes_before_what_the_processor_reads(setting, read_by_processor, expected):
    assert expected == columns_to_read(COLUMNS, setting, lambda _: read_by_processor, "Totals")


def test_a_column_that_the_input_does_not_have_is_named():
    with pytest.raises(UsageError, match=r"inputColumns names amuont, .* are key, amount"):
        columns_to_read(COLUMNS, ("amuont",), lambda _: None, "Totals")


def test_values_of_the_setting():
    assert SETTINGS["inputColumns"].kind.parse("Auto", "inputColumns") == "auto"
    assert SETTINGS["inputColumns"].kind.parse(["a", "b"], "inputColumns") == ("a", "b")
    for value in ("a, b", 3, [1]):
        with pytest.raises(InvalidOptionsError, match='"auto", "all" or a list of column names'):
            SETTINGS["inputColumns"].kind.parse(value, "inputColumns")
