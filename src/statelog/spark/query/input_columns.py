"""
Find which input columns a processor reads, so that Spark can skip all others.

The user names them by the setting `inputColumns`; a `ColumnarProcessor` names them itself; for a
processor of Rows the source code of `handleInputRows` proves them.  The proof follows the rows from
the argument through loops, comprehensions and a few built-in functions.  Each row may only be used
as `row.name` or `row["name"]`.  Everything else (a row given to a function, stored, compared or
returned, a computed name, a decorated method) needs all columns.  The proof is about the code that
runs: source that does not compile to the method's bytecode is not used.
"""

from __future__ import annotations

import ast
import inspect
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Final

from pyspark.sql import Row

from statelog.errors import UsageError
from statelog.spark.query.settings import ALL

_log = logging.getLogger("statelog.spark")

_ROWS = "rows"
_ROW = "row"
_OTHER = "other"
"""What an expression is: the rows of a key or some of them, one row, anything else."""

_TO_ROWS: Final = frozenset(["list", "tuple", "sorted", "reversed", "iter"])
_TO_ROW: Final = frozenset(["next", "min", "max"])
_COMPARING: Final = frozenset(["sorted", "min", "max"])
"""Functions that compare whole rows, unless they have a key."""
_NOT_STORED: Final = frozenset(["len", "bool"])
_BUILTINS: Final = _TO_ROWS | _TO_ROW | _NOT_STORED
_SCOPE_READERS: Final = frozenset(["locals", "vars", "eval", "exec"])
"""Functions that reach a row without naming it."""

_TESTS: Final = (ast.If, ast.While, ast.IfExp)
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


ReadBy = Callable[[Sequence[str]], "frozenset[str] | None"]
"""Returns which of the input columns a processor reads; None if that is not certain."""


def columns_to_read(
    columns: Sequence[str], chosen: str | tuple[str, ...], read_by: ReadBy, processor: str
) -> frozenset[str]:
    """Return the input columns that the tasks need; *chosen* is the `inputColumns` setting."""
    if not isinstance(chosen, str):
        return named_columns("inputColumns", chosen, columns)
    read = None if chosen == ALL else read_by(columns)
    if read is None:
        return frozenset(columns)
    if len(read) < len(columns):
        _log.info(
            "%s reads %s of %d input columns; the others are not read or sent (inputColumns='all' keeps "
            "them)",
            processor,
            ", ".join(sorted(read)) or "none",
            len(columns),
        )
    return read


def named_columns(where: str, names: Sequence[str], columns: Sequence[str]) -> frozenset[str]:
    """Return the columns named in a setting or an attribute, if the input has them."""
    if unknown := [name for name in names if name not in columns]:
        raise UsageError(
            f"{where} names {', '.join(unknown)}, which the input does not have; its columns are "
            f"{', '.join(columns)}"
        )
    return frozenset(names)


def columns_read(function: FunctionType, columns: Collection[str]) -> frozenset[str] | None:
    """
    Return the *columns* that `handleInputRows` reads from its rows.

    None if that is not certain.
    """
    method = _source(function)
    if method is None:
        return None
    arguments = method.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    if len(names) != 4 or arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
        return None
    code = function.__code__
    functions = _BUILTINS.difference(function.__globals__, code.co_freevars)
    try:
        return frozenset(_Proof(method, names[2], functions).columns(columns))
    except _NotProvenError:
        return None


def _source(function: FunctionType) -> ast.FunctionDef | None:
    """Return the parsed source of a method, if it certainly matches *function*."""
    code = function.__code__
    try:
        # The whole file: its imports change instructions, its classes the names like `__private`.
        tree = ast.parse("".join(inspect.findsource(code)[0]))
        compiled = compile(tree, code.co_filename, "exec", dont_inherit=True)
    except (OSError, TypeError, SyntaxError, ValueError):  # no source, or of something else
        return None
    if not any(_is_same(other_code, code) for other_code in _codes(compiled)):
        return None
    methods = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and (node.name, node.lineno) == (code.co_name, code.co_firstlineno)
        and not node.decorator_list
    ]
    return methods[0] if len(methods) == 1 else None


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _is_same(a: CodeType, b: CodeType) -> bool:
    """Return whether two code objects were compiled from the same lines of source."""
    parts = ("co_firstlineno", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars")
    if any(getattr(a, attribute) != getattr(b, attribute) for attribute in parts):
        return False
    if len(a.co_consts) != len(b.co_consts):
        return False
    for left, right in zip(a.co_consts, b.co_consts, strict=True):
        if isinstance(left, CodeType) and isinstance(right, CodeType):
            if not _is_same(left, right):
                return False
        elif repr(left) != repr(right):  # the text tells 1 from 1.0 and True
            return False
    return True


class _NotProvenError(Exception):
    """The code may use a row for more than reading its columns."""


class _Proof:
    """
    Tracks how one method uses its rows.

    A name stands for the same thing in the whole method, nested functions included.  A name that is
    bound to rows in one place and to anything else in another ends the proof.
    """

    def __init__(self, method: ast.FunctionDef, rows: str, functions: Collection[str]) -> None:
        self._method = method
        self._rows = rows
        self._functions = functions
        self._kinds = {rows: _ROWS}
        self._parents = {
            child: parent for parent in ast.walk(method) for child in ast.iter_child_nodes(parent)
        }

    def columns(self, columns: Collection[str]) -> set[str]:
        """Return the columns read; raise `_NotProvenError` if the method may read more."""
        while True:  # until a loop over a name bound later finds nothing more
            before = dict(self._kinds)
            for node in ast.walk(self._method):
                self._bind(node)
            if self._kinds == before:
                break
        self._check_bindings()
        read: set[str] = set()
        for node in ast.walk(self._method):
            if isinstance(node, ast.Name) and node.id in _SCOPE_READERS:
                raise _NotProvenError
            if isinstance(node, ast.expr) and self._kind(node) != _OTHER:
                self._check_use(node, columns, read)
        return read

    def _kind(self, node: ast.expr) -> str:
        """Classify an expression."""
        if isinstance(node, ast.Name):
            return self._kinds.get(node.id, _OTHER)
        if isinstance(node, ast.Subscript) and self._kind(node.value) == _ROWS:
            return _ROWS if isinstance(node.slice, ast.Slice) else _ROW
        if self._is_call(node, _TO_ROWS):
            return _ROWS
        return _ROW if self._is_call(node, _TO_ROW) else _OTHER

    def _is_call(self, node: ast.AST, names: Collection[str]) -> bool:
        """Return whether *node* calls a built-in function whose only argument is rows."""
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in names
            and node.func.id in self._functions
            and len(node.args) == 1
            and self._kind(node.args[0]) == _ROWS
        ):
            return False
        options = {keyword.arg: keyword.value for keyword in node.keywords}
        if node.func.id not in _COMPARING:
            return not options
        return isinstance(options.pop("key", None), ast.Lambda) and options.keys() <= {"reverse"}

    def _bind(self, node: ast.AST) -> None:
        """Collect the names that *node* binds to rows."""
        if isinstance(node, ast.For | ast.comprehension) and self._kind(node.iter) == _ROWS:
            self._set(node.target, _ROW)
        elif isinstance(node, ast.Assign) and (kind := self._kind(node.value)) != _OTHER:
            for target in node.targets:
                self._set(target, kind)
        elif isinstance(node, ast.Call) and self._is_call(node, _COMPARING):
            for keyword in node.keywords:
                if keyword.arg == "key" and isinstance(keyword.value, ast.Lambda):
                    self._set_parameter(keyword.value)

    def _set_parameter(self, function: ast.Lambda) -> None:
        arguments = [
            argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)
        ]
        if len(arguments) != 1 or function.args.defaults or function.args.kw_defaults:
            raise _NotProvenError
        self._set(ast.Name(arguments[0], ast.Store()), _ROW)

    def _set(self, target: ast.expr, kind: str) -> None:
        if not isinstance(target, ast.Name) or self._kinds.setdefault(target.id, kind) != kind:
            raise _NotProvenError

    def _check_bindings(self) -> None:
        """Check that names of rows, and of built-in functions, are not bound to anything else."""
        names = self._kinds.keys() | self._functions
        for node in ast.walk(self._method):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                if node.id in self._kinds and not self._is_binding_of_rows(node):
                    raise _NotProvenError
                if node.id in self._functions:
                    raise _NotProvenError
            elif isinstance(node, ast.arg) and node.arg != self._rows:
                if node.arg in self._functions:
                    raise _NotProvenError
                if node.arg in self._kinds and not self._is_parameter_of_key(node):
                    raise _NotProvenError
            elif node is not self._method and not names.isdisjoint(_bound_by(node)):
                raise _NotProvenError

    def _is_binding_of_rows(self, name: ast.Name) -> bool:
        parent = self._parents[name]
        kind = self._kinds[name.id]
        if isinstance(parent, ast.For | ast.comprehension) and parent.target is name:
            return kind == _ROW and self._kind(parent.iter) == _ROWS
        return (
            isinstance(parent, ast.Assign)
            and name in parent.targets
            and self._kind(parent.value) == kind
        )

    def _is_parameter_of_key(self, argument: ast.arg) -> bool:
        """Return whether *argument* belongs to `key=lambda row: ...` in a call on rows."""
        function = self._parents[self._parents[argument]]
        keyword = self._parents[function]
        return (
            isinstance(function, ast.Lambda)
            and isinstance(keyword, ast.keyword)
            and keyword.arg == "key"
            and self._is_call(self._parents[keyword], _COMPARING)
        )

    def _check_use(self, node: ast.expr, columns: Collection[str], read: set[str]) -> None:
        """Check how an expression over rows is used, and collect the column that it reads."""
        parent = self._parents[node]
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            return  # see `_check_bindings`
        if isinstance(parent, ast.Assign) and parent.value is node:
            return
        if self._kind(node) == _ROW:
            name = _column_of(node, parent)
            if name is None or name not in columns:
                raise _NotProvenError
            read.add(name)
            return
        is_iterated = isinstance(parent, ast.For | ast.comprehension) and parent.iter is node
        is_element = isinstance(parent, ast.Subscript) and parent.value is node
        is_tested = isinstance(parent, _TESTS) and parent.test is node
        is_negated = isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not)
        is_argument = self._is_call(parent, _BUILTINS)
        if not (is_iterated or is_element or is_tested or is_negated or is_argument):
            raise _NotProvenError
        if is_element and not isinstance(parent.ctx, ast.Load):  # type: ignore[attr-defined]
            raise _NotProvenError


def _column_of(node: ast.expr, parent: ast.AST) -> str | None:
    """Return the column that *parent* reads from the row *node*, or None if it does more."""
    match parent:
        case ast.Attribute(attr=name, ctx=ast.Load()):
            return None if hasattr(Row, name) else name  # `row.count` is a method
        case ast.Subscript(value=value, slice=ast.Constant(value=str(name)), ctx=ast.Load()):
            return name if value is node else None
        case _:
            return None


def _bound_by(node: ast.AST) -> Iterator[str]:
    """Yield the names that *node* binds or declares as strings."""
    if isinstance(node, _SCOPES):
        yield node.name
    elif isinstance(node, ast.Global | ast.Nonlocal):
        yield from node.names
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).split(".")[0]
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest
