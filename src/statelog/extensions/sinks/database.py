"""
`DatabaseSink`: writes rows and the record of their micro-batch in one transaction.

A table of the sink has one row for each writer.  The first statement of a transaction replaces the
record that this driver knows, and does nothing if there is another one: of two drivers that write
a micro-batch, the second waits for the first, and then writes nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from statelog.arguments import given
from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import UnavailableError, UsageError
from statelog.runtime.fail_points import fail_point
from statelog.spark.stream.sinks.exactly_once_sink import SinkBatch

_ROWS_PER_CALL: Final = 10_000
_TRANSIENT: Final = ("OperationalError", "InterfaceError")
"""The transient errors of PEP 249: a lost connection, a lock, a deadlock.  SQLite also raises the first of
them for a statement that is wrong, such as one that names a missing table: its code is `SQLITE_ERROR`."""
_PLACEHOLDERS: Final = {"qmark": "?", "format": "%s", "pyformat": "%s"}
_PROBE: Final = "statelog checks whether the connection rolls back"
_PROBE_BATCH: Final = DeliveredBatch("", 0, 0)


class Cursor(Protocol):
    """The methods of a PEP 249 cursor that the sink calls."""

    @property
    def rowcount(self) -> int:
        """The number of rows that the last statement changed."""

    def execute(self, operation: Any, parameters: Any = ..., /) -> object:
        """Run a statement."""

    def executemany(self, operation: Any, parameters: Any, /) -> object:
        """Run a statement for each row of parameters."""

    def fetchone(self) -> Sequence[Any] | None:
        """Return the next row of the result, or None."""


class Connection(Protocol):
    """The methods of a PEP 249 connection that the sink calls."""

    def cursor(self) -> Cursor:
        """Return a new cursor."""

    def commit(self) -> None:
        """Commit the transaction."""

    def rollback(self) -> None:
        """Roll back the transaction."""

    def close(self) -> None:
        """Close the connection."""


class DatabaseSink:
    """
    Writes to a database table through any PEP 249 (DB-API) driver.

    Each micro-batch is one transaction.  The table must exist and have the columns of the rows, in
    the same spelling.  The database must have `insert ... on conflict`, as SQLite and PostgreSQL
    have.

    With *key*, a row replaces the row with the same key; the table needs a unique constraint on it.

    Example:
        import functools
        import sqlite3

        connect = functools.partial(sqlite3.connect, "totals.db", check_same_thread=False)
        sink = DatabaseSink(connect, "totals", key=["customer"])

    Args:
        connect: Called without arguments, returns a new connection that is not in autocommit mode.
            On Spark Connect it is pickled.
        table: The table, perhaps with its schema: "sales.totals".
        key: Columns of the key; empty to append.
        batches_table: The table of the records of micro-batches, which the sink creates.
        paramstyle: "qmark", "format" or "pyformat"; None for the one of the driver.

    Raises:
        UsageError: An argument is wrong.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        table: str,
        *,
        key: Sequence[str] = (),
        batches_table: str = "statelog_batches",
        paramstyle: str | None = None,
    ) -> None:
        if not callable(connect):
            raise UsageError(
                f"DatabaseSink takes a function that connects, such as "
                f"functools.partial(sqlite3.connect, path), not {given(connect)}"
            )
        if isinstance(key, str):
            raise UsageError("key must be a list of columns, such as ['customer'], not a string")
        if paramstyle is not None and paramstyle not in _PLACEHOLDERS:
            raise UsageError(f"paramstyle must be one of {', '.join(_PLACEHOLDERS)}")
        self._connect = connect
        self._table = table
        self._key = tuple(key)
        self._batches = batches_table
        self._paramstyle = paramstyle
        self._connection: Connection | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_connection": None}

    def last_committed(self, writer: str) -> DeliveredBatch | None:
        """Read the newest micro-batch of *writer* from the table of batches."""
        with self._transaction(f"cannot read the batches of {writer}") as connection:
            return self._last(connection, writer)

    def write(self, batch: SinkBatch) -> None:
        """Write the rows and the record in one transaction."""
        with self._transaction(f"cannot write batch {batch.batch_id}") as connection:
            mark = self._placeholder(connection)
            cursor = connection.cursor()
            if not self._replace_record(connection, batch):
                last = self._last(connection, batch.writer)
                batch.check_next(last, target=self._table)
                raise UnavailableError(
                    f"the record of {batch.writer} in {self._batches} was changed at the same time"
                )
            statement = self._insert(_quoted(self._table), batch.rows.column_names, mark)
            for rows in _rows(batch.rows):
                cursor.executemany(statement, rows)
            fail_point("before-sink-commit")
            connection.commit()

    def close(self) -> None:
        """Close the connection."""
        connection = self._connection
        self._connection = None
        if connection is not None:
            connection.close()

    def _replace_record(self, connection: Connection, batch: SinkBatch) -> bool:
        """Replace the record that the driver expects; return whether the table contained it."""
        batches = _quoted(self._batches)
        mark = self._placeholder(connection)
        cursor = connection.cursor()
        if batch.after is None:
            cursor.execute(
                f"insert into {batches} (writer, batch) values ({mark}, {mark}) "
                "on conflict (writer) do nothing",
                (batch.writer, batch.record),
            )
        else:
            cursor.execute(
                f"update {batches} set batch = {mark} where writer = {mark} and batch = {mark}",
                (batch.record, batch.writer, batch.after.to_text()),
            )
        return cursor.rowcount == 1

    def _insert(self, table: str, columns: Sequence[str], mark: str) -> str:
        names = [_quoted_name(column) for column in columns]
        statement = (
            f"insert into {table} ({', '.join(names)}) values ({', '.join([mark] * len(names))})"
        )
        if not self._key:
            return statement
        missing = [column for column in self._key if column not in columns]
        if missing:
            raise UsageError(
                f"the rows for {self._table} lack the key columns {', '.join(missing)}; they have "
                f"{', '.join(columns)}"
            )
        others = [_quoted_name(column) for column in columns if column not in self._key]
        conflict = f"on conflict ({', '.join(map(_quoted_name, self._key))})"
        changes = ", ".join(f"{name} = excluded.{name}" for name in others)
        return f"{statement} {conflict} do {f'update set {changes}' if others else 'nothing'}"

    @contextlib.contextmanager
    def _transaction(self, failure: str) -> Iterator[Connection]:
        """Lend the connection; roll back uncommitted changes, and close it after an error."""
        try:
            if self._connection is None:
                self._connection = self._open()
            yield self._connection
            self._connection.rollback()
        except BaseException as error:
            connection = self._connection
            self._connection = None
            if connection is not None:
                with contextlib.suppress(Exception):
                    connection.rollback()
                with contextlib.suppress(Exception):
                    connection.close()
            if not may_pass(error):
                raise
            text = f"{failure} in {self._table}: {type(error).__name__}: {error}"
            raise UnavailableError(text) from error

    def _open(self) -> Connection:
        connection = self._connect()
        try:
            cursor = connection.cursor()
            cursor.execute(
                f"create table if not exists {_quoted(self._batches)} "
                "(writer varchar(200) primary key, batch varchar(400) not null)"
            )
            connection.commit()
            self._check_rolls_back(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_rolls_back(self, connection: Connection) -> None:
        """Reject a connection in autocommit mode, where rows and record would commit separately."""
        batches = _quoted(self._batches)
        mark = self._placeholder(connection)
        cursor = connection.cursor()
        cursor.execute(
            f"insert into {batches} (writer, batch) values ({mark}, {mark}) on conflict do nothing",
            (_PROBE, _PROBE_BATCH.to_text()),
        )
        connection.rollback()
        if self._last(connection, _PROBE) is not None:
            connection.cursor().execute(f"delete from {batches} where writer = {mark}", (_PROBE,))
            connection.commit()
            raise UsageError(
                f"the connection for {self._table} does not roll back: it is in autocommit mode, so "
                "rows and the record of their batch would be in separate transactions. Turn autocommit off"
            )
        connection.rollback()

    def _last(self, connection: Connection, writer: str) -> DeliveredBatch | None:
        mark = self._placeholder(connection)
        cursor = connection.cursor()
        cursor.execute(
            f"select batch from {_quoted(self._batches)} where writer = {mark}", (writer,)
        )
        row = cursor.fetchone()
        return None if row is None else DeliveredBatch.from_text(row[0], where=self._batches)

    def _placeholder(self, connection: Connection) -> str:
        style = self._paramstyle
        if style is None:
            # A pickled `sqlite3.connect` imports `_sqlite3` only.
            module = importlib.import_module(type(connection).__module__.partition(".")[0])
            style = getattr(module, "paramstyle", "")
        if style not in _PLACEHOLDERS:
            raise UsageError(
                f"the driver of {type(connection).__qualname__} uses the paramstyle {style!r}, which "
                f"is not one of {', '.join(_PLACEHOLDERS)}; set paramstyle if the driver supports one of these"
            )
        return _PLACEHOLDERS[style]


def _rows(table: pa.Table) -> Iterable[Sequence[tuple[object, ...]]]:
    for batch in table.to_batches(max_chunksize=_ROWS_PER_CALL):
        yield list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _quoted(table: str) -> str:
    return ".".join(map(_quoted_name, table.split(".")))


def _quoted_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def may_pass(error: BaseException) -> bool:
    """Return whether a retry may succeed after an error from a PEP 249 driver."""
    if not any(kind.__name__ in _TRANSIENT for kind in type(error).__mro__):
        return False
    raised = getattr(error, "orig", error)  # SQLAlchemy wraps the driver's error
    return getattr(raised, "sqlite_errorcode", None) != sqlite3.SQLITE_ERROR
