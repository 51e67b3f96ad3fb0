"""`statelog read`, `get`, `history`, `diff` and `sql`: state as of a checkpoint, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from statelog.cli.options import (
    CHECKPOINT_FORMS,
    CheckpointOption,
    JsonLinesOption,
    LocationArgument,
    OperatorOption,
)
from statelog.cli.output import EXIT_FINDING, console, plural, print_error, progress, utc
from statelog.cli.state_rows import LimitOption, open_state, row_limit, rows_of, show_rows
from statelog.errors import UsageError
from statelog.extensions.read.history import KeyVersion, key_history
from statelog.extensions.read.location_state import LocationState
from statelog.state.keys.state_key import key_from_text
from statelog.state.reader.location import rows_of_key
from statelog.state.reader.state_reader import StateReader

_VariableAndKey = Annotated[
    list[str],
    typer.Argument(
        metavar="[VARIABLE] KEY...",
        help="State variable, $timers for timers; without it all of the key. Then the values of the key "
        r"columns, in their order: '\N' is null, '\\N' the text \N; -- before a negative number.",
    ),
]


def read(
    location: LocationArgument,
    variable: Annotated[
        str | None,
        typer.Argument(help="State variable; $timers for timers. All by default."),
    ] = None,
    *,
    checkpoint: CheckpointOption = None,
    operator: OperatorOption = None,
    limit: LimitOption = None,
    as_json: JsonLinesOption = False,
) -> None:
    """
    Print the state as of a checkpoint, one row for each value, list element, map entry or timer.

    What had expired at the time of the checkpoint's micro-batch is left out.
    """
    with open_state(location, operator) as state:
        reader = state.reader(checkpoint, variable=variable)
        names = [each.name for each in reader.variables()] if variable is None else [variable]
        time_ms = reader.as_of_ms
        for name in names:
            show_rows(
                rows_of(reader.batches(name, now_ms=time_ms)),
                reader.arrow_schema(name).names,
                limit=row_limit(limit, as_json),
                as_json=as_json,
                title=f"{name} as of checkpoint {reader.checkpoint_id}, {utc(time_ms)} UTC",
                extra={"variable": name},
            )


def get(
    location: LocationArgument,
    words: _VariableAndKey,
    *,
    checkpoint: CheckpointOption = None,
    operator: OperatorOption = None,
    limit: LimitOption = None,
    as_json: JsonLinesOption = False,
) -> None:
    """
    Print the state of one key as of a checkpoint; only its key group is read.

    Exit status 1 if the key does not exist.
    """
    with open_state(location, operator) as state:
        reader = state.reader(checkpoint, variable=words[0])
        names, key = _variables_and_key(reader, words)
        time_ms = reader.as_of_ms
        with progress("reading"):
            tables = {name: rows_of_key(reader, name, key, time_ms) for name in names}
    if not any(table.num_rows for table in tables.values()):
        _end_without(words, names, f"checkpoint {reader.checkpoint_id}")
    for name, table in tables.items():
        if not table.num_rows:
            continue
        show_rows(
            rows_of(table.to_batches()),
            table.column_names,
            limit=row_limit(limit, as_json),
            as_json=as_json,
            title=f"{name} as of checkpoint {reader.checkpoint_id}",
            extra={"variable": name},
        )


def history(
    location: LocationArgument,
    words: _VariableAndKey,
    *,
    operator: OperatorOption = None,
    as_json: JsonLinesOption = False,
) -> None:
    """
    Print the state of one key as of each retained checkpoint, oldest first.

    Exit status 1 if the key does not exist, or if a checkpoint cannot be read; the others are printed.
    """
    with open_state(location, operator) as state, progress("reading each checkpoint"):
        names, key = _variables_and_key(state.reader(variable=words[0]), words)
        histories = {name: key_history(state, name, key, None) for name in names}
        rows = [
            {
                "variable": name,
                "checkpoint_id": version.checkpoint_id,
                "batch_id": version.batch_id,
                "as_of_ms": version.as_of_ms,
                "as of (UTC)": utc(version.as_of_ms),
                "state": _shown(state, name, version),
            }
            for name, versions in histories.items()
            for version in versions.versions
        ]
    if not any(row["state"] for row in rows):
        _end_without(words, names, "a retained checkpoint")
    hidden = ["as of (UTC)" if as_json else "as_of_ms"] + ["variable"] * (len(words) > len(key))
    columns = [name for name in rows[0] if name not in hidden]
    show_rows(
        [{name: row[name] for name in columns} for row in rows],
        columns,
        limit=None,
        as_json=as_json,
    )
    if not as_json:
        checkpoints = {row["checkpoint_id"] for row in rows}
        console().print(_among(len(checkpoints)), markup=False)
    for versions in histories.values():
        versions.checked()  # raises, after what can be read was printed


def _variables_and_key(
    reader: StateReader, words: Sequence[str]
) -> tuple[list[str], tuple[object, ...]]:
    """Return the variables and the key that words mean; with as many words as columns all variables."""
    key_schema, names = reader.schema.key_schema, [each.name for each in reader.variables()]
    if len(words) == len(key_schema):
        try:
            return names, key_from_text(words, key_schema)
        except UsageError:
            if words[0] not in names:  # else a value is missing after the variable
                raise
    return [words[0]], key_from_text(words[1:], key_schema)


def _end_without(words: Sequence[str], names: Sequence[str], where: str) -> NoReturn:
    """End the program because a key is without state."""
    print_error(f"no such key: {' '.join(words)}; it is not in {', '.join(names)} of {where}")
    raise typer.Exit(EXIT_FINDING)


def diff(
    location: LocationArgument,
    before: Annotated[
        str, typer.Argument(help=f"The checkpoint to compare with: {CHECKPOINT_FORMS}.")
    ],
    after: Annotated[str, typer.Argument(help="The other checkpoint, in the same forms.")],
    *,
    variable: Annotated[
        str | None, typer.Option(help="The only state variable to compare; all by default.")
    ] = None,
    operator: OperatorOption = None,
    limit: LimitOption = None,
    as_json: JsonLinesOption = False,
) -> None:
    """
    Print the keys whose state differs between two checkpoints, with their state in both.

    What expired between the checkpoints counts as a difference.
    """
    with open_state(location, operator) as state, progress("reading both checkpoints"):
        table = state.changes(before, after, variable)
        retained = 0 if as_json else _retained(state)
    limit = row_limit(limit, as_json)
    if as_json:
        show_rows(rows_of(table.to_batches()), table.column_names, limit=limit, as_json=True)
        return
    counts = table.column("change").value_counts().to_pylist()
    text = ", ".join(f"{count['counts']:,} {count['values']}" for count in counts)
    console().print(f"{text or 'no difference'}; {_among(retained)}", markup=False)
    names = [name.partition(".")[2] for name in table.column_names if name.startswith("after.")]
    keys = [name for name in table.column_names if not name.startswith(("before.", "after."))]
    for name in names:
        then, now = f"before.{name}", f"after.{name}"
        rows = [row for row in rows_of(table.to_batches()) if row[then] != row[now]]
        if rows:
            title = name if len(names) > 1 else ""
            show_rows(rows, [*keys, then, now], limit=limit, as_json=False, title=title)


def _retained(state: LocationState) -> int:
    return sum(each.is_retained for each in state.checkpoints())


def _among(retained: int) -> str:
    """Return how far back a location can be read, for people."""
    return f"the location retains {plural(retained, 'checkpoint')} (setting retainedCheckpoints)"


def _shown(state: LocationState, variable: str, version: KeyVersion) -> object:
    """Return the state of a version; a map as a list of its entries."""
    by_name = {each.name: each for each in state.variables(version.checkpoint_id)}.get(variable)
    is_map = by_name is not None and by_name.user_key_schema is not None
    return list(version.value.items()) if is_map else version.value


def sql(
    location: LocationArgument,
    statement: Annotated[
        str,
        typer.Argument(
            help="One statement in the dialect of DuckDB, such as 'from total limit 5'."
        ),
    ],
    *,
    checkpoint: CheckpointOption = None,
    operator: OperatorOption = None,
    limit: LimitOption = None,
    allow_files: Annotated[
        bool,
        typer.Option(
            "--allow-files",
            help="Let the statement read and write files, attach databases and load extensions.",
        ),
    ] = False,
    as_json: JsonLinesOption = False,
) -> None:
    """
    Run one SQL statement over the state as of a checkpoint, through DuckDB.

    Each state variable is a table of its name, timers are the table timers.  Names with a dot need quotes: select "key.customer", "value.total" from total.  Only the variables that the statement names are read, into memory.  The statement reads and writes nothing else without --allow-files.  Needs the extra sql.
    """
    with open_state(location, operator) as state, progress("reading"):
        table = state.sql(statement, checkpoint, allow_files=allow_files)
    show_rows(
        rows_of(table.to_batches()),
        table.column_names,
        limit=row_limit(limit, as_json),
        as_json=as_json,
    )
