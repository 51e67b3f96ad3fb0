"""Write the state as of a checkpoint to Parquet files, one per variable."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from statelog.errors import StatelogError, StoreError, UsageError
from statelog.state.reader import StateReader
from statelog.store.local_disk import check_named_file

_SUFFIX = ".parquet"


def write_variables(
    reader: StateReader,
    variables: Sequence[str],
    to: Path,
    *,
    location: str,
    overwrite: bool,
    update: Callable[[str], None],
) -> list[tuple[str, Path, int]]:
    """
    Write variables to a folder, or one variable to a file; return names, files and row counts.

    A file appears under its name when it is complete.  A file that exists is rejected with
    `UsageError` without *overwrite*, except the result of an interrupted call for the same
    checkpoint.
    """
    schemas = {name: reader.arrow_schema(name) for name in variables}  # rejects unknown names
    check_named_file(reader.store.url, to)
    files = _files(to, variables)
    facts = {
        "statelog.location": location,
        "statelog.checkpoint": str(reader.checkpoint_id),
        "statelog.operator": reader.schema.operator_id,
        "statelog.as_of_ms": str(reader.as_of_ms),
    }
    _check_absent(files, facts, overwrite=overwrite)
    rows = _write(reader, schemas, files, facts, overwrite=overwrite, update=update)
    return [(name, path, rows[name]) for name, path in files.items()]


def _files(out: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return the file of each variable."""
    if out.suffix == _SUFFIX and not out.is_dir():
        if len(names) != 1:
            texts = ", ".join(names) or "none"
            raise UsageError(
                f"{out} is one file, but there are {len(names)} variables ({texts}): pass a folder, or "
                "select one variable"
            )
        return {names[0]: out}
    if out.exists() and not out.is_dir():
        raise UsageError(
            f"{out} is not a folder; to write a file, use a name that ends with {_SUFFIX}"
        )
    # A name may have any characters; those that are not safe in a file name are encoded.
    quoted = {name: urllib.parse.quote(name, safe=" $()=+,@") for name in names}
    return {name: out / f"{quoted[name]}{_SUFFIX}" for name in names}


def _check_absent(files: Mapping[str, Path], facts: Mapping[str, str], *, overwrite: bool) -> None:
    """Check that no unrelated file has any of the names."""
    for name, path in files.items():
        if os.path.lexists(path) and not overwrite and not _is_result(path, _metadata(facts, name)):
            raise UsageError(f"{path} already exists; pass --overwrite to replace it")


def _metadata(facts: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the metadata for the file of a variable."""
    return {**facts, "statelog.variable": name}


def _is_result(path: Path, metadata: Mapping[str, str]) -> bool:
    """Return whether a file was written by an earlier call from the same checkpoint."""
    try:
        present = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowException):
        return False
    return all(present.get(name.encode()) == text.encode() for name, text in metadata.items())


def _write(
    reader: StateReader,
    schemas: Mapping[str, pa.Schema],
    files: Mapping[str, Path],
    facts: Mapping[str, str],
    *,
    overwrite: bool,
    update: Callable[[str], None],
) -> dict[str, int]:
    """
    Write all files under temporary names, and then rename them.

    Return the number of rows of each.
    """
    counts = dict.fromkeys(files, 0)
    staged = {
        name: path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
        for name, path in files.items()
    }
    writers: dict[str, pq.ParquetWriter] = {}
    try:
        for name, path in staged.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            schema = schemas[name].with_metadata(_metadata(facts, name))
            writers[name] = pq.ParquetWriter(path, schema, compression="zstd")
        for name, batch in reader.rows(list(files)):
            writers[name].write_batch(batch.replace_schema_metadata(writers[name].schema.metadata))
            counts[name] += batch.num_rows
            group = batch.column(0)[-1].as_py() - reader.key_groups.start + 1
            update(f"{sum(counts.values()):,} rows, key group {group} of {len(reader.key_groups)}")
        for writer in writers.values():
            writer.close()
        for name, path in files.items():
            _publish(staged[name], path, _metadata(facts, name), overwrite=overwrite)
    except OSError as error:
        if isinstance(error, StatelogError):
            raise
        raise StoreError(
            f"cannot write {error.filename or files}: {error.strerror or error}"
        ) from error
    finally:
        for writer in writers.values():
            with suppress(OSError, pa.ArrowException):
                writer.close()
        for path in staged.values():
            with suppress(OSError):
                path.unlink()
    return counts


def _publish(staged: Path, path: Path, metadata: Mapping[str, str], *, overwrite: bool) -> None:
    """Rename a finished file; without *overwrite*, the name must be free."""
    with staged.open("rb") as file:
        os.fsync(file.fileno())
    if overwrite:
        staged.replace(path)
        return
    try:
        path.hardlink_to(staged)
    except FileExistsError as error:
        if not _is_result(path, metadata):
            raise UsageError(f"{path} already exists; pass --overwrite to replace it") from error
    except (
        OSError
    ) as error:  # a file system without hard links: the check at the start has to suffice
        if os.path.lexists(path) and not _is_result(path, metadata):
            raise UsageError(f"{path} already exists; pass --overwrite to replace it") from error
        staged.replace(path)
