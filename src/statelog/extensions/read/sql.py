"""
Run SQL on state variables with DuckDB.

Each variable is a table of its name with the columns of its rows, which need quotes in SQL:
`select "key.customer", "value.total" from total`.  A statement is bound to empty tables first, so
that only the variables that it names are read.

A statement has these tables and nothing else: DuckDB reads and writes no file, loads no extension
and connects to nothing, and the statement cannot change that.  The caller may allow it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from statelog import extras
from statelog.errors import UsageError
from statelog.state.reader.state_reader import StateReader
from statelog.state.schema import TIMERS_NAME

_TIMERS_ALIAS: Final = "timers"
"""An alias of the timers, because `$timers` needs quotes."""
_EMPTY: Final = "statelog_empty"
_CONFIG: Final = {
    "python_enable_replacements": "false",  # a name in SQL is a variable, not one of our locals
    "autoinstall_known_extensions": "false",
}
_LOCKED: Final = {**_CONFIG, "enable_external_access": "false", "lock_configuration": "true"}


def run_sql(
    statement: str,
    schemas: Mapping[str, pa.Schema],
    read: Callable[[Sequence[str]], Mapping[str, pa.Table]],
    *,
    allow_files: bool = False,
) -> pa.Table:
    """
    Return the result of one SQL statement.

    Args:
        statement: In the dialect of DuckDB.
        schemas: The columns of each state variable, by its name.
        read: Returns the rows of variables by name; called once, for those that the statement
            names.
        allow_files: The statement may read and write files, attach databases and load extensions.

    Raises:
        UsageError: The statement is wrong, names no state variable, or is more than one; or it
            needs *allow_files*.
        RequirementError: DuckDB is not installed.

    Blocks: While the variables are read and the statement runs.   Thread: any.
    """
    duckdb = extras.load("SQL on state", "sql", "duckdb")
    variables = {name: name for name in schemas}
    if TIMERS_NAME in schemas and _TIMERS_ALIAS not in map(str.lower, schemas):
        variables[_TIMERS_ALIAS] = TIMERS_NAME
    config = _CONFIG if allow_files else _LOCKED
    with duckdb.connect(":memory:", config=config) as connection:
        try:
            if len(connection.extract_statements(statement)) != 1:
                raise UsageError("pass one SQL statement")
            for name, variable in variables.items():
                connection.register(_EMPTY, schemas[variable].empty_table())
                connection.execute(f"create table {_quoted(name)} as select * from {_EMPTY}")
            used = _used(connection, duckdb.Error, statement, variables)
            named = {name: variable for name, variable in variables.items() if name in used}
            tables = read(list(dict.fromkeys(named.values())))
            for name, variable in named.items():
                connection.execute(f"drop table {_quoted(name)}")
                connection.register(name, tables[variable])
            relation = connection.sql(statement)
            return pa.table({}) if relation is None else relation.to_arrow_table()
        except duckdb.Error as error:
            names = ", ".join(map(_quoted, schemas)) or "none"
            if not allow_files and isinstance(error, duckdb.PermissionException):
                raise UsageError(
                    f"SQL: {error}\nStatements cannot read or write files unless you allow it: "
                    "allow_files=True, or --allow-files on the command line"
                ) from error
            raise UsageError(
                f"SQL: {error}\nThe tables are the state variables: {names}; names with a dot need "
                'quotes, as in "value.total"'
            ) from error


def run_sql_on(readers: Sequence[StateReader], statement: str, *, allow_files: bool) -> pa.Table:
    """
    Return the result of a statement on the state of operators, as of one checkpoint.

    See `run_sql`.

    Variables whose name several operators have are left out.
    """
    owners: dict[str, list[StateReader]] = {}
    for reader in readers:
        for variable in reader.variables():
            owners.setdefault(variable.name, []).append(reader)
    owner = {name: sharing[0] for name, sharing in owners.items() if len(sharing) == 1}

    def read(names: Sequence[str]) -> dict[str, pa.Table]:
        tables: dict[str, pa.Table] = {}
        for reader in readers:
            of_reader = [name for name in names if owner[name] is reader]
            if of_reader:
                tables |= reader.tables(variables=of_reader)
        return tables

    schemas = {name: reader.arrow_schema(name) for name, reader in owner.items()}
    return run_sql(statement, schemas, read, allow_files=allow_files)


def _used(
    connection: Any, error_class: type[Exception], statement: str, names: Collection[str]
) -> set[str]:
    """Return the names of the tables used in a statement, and possibly some other names."""
    try:
        used = {name.lower() for name in connection.get_table_names(statement)}
        return {name for name in names if name.lower() in used}
    except error_class:  # it does not see through all queries with a WITH
        return {name for name in names if name.lower() in statement.lower()}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
