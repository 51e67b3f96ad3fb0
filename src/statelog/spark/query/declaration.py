"""
The seam of an extension in what a processor declares.

`init` runs once on the driver, and calls the methods that extensions add to the handle.  What an extension
notes is checked at the call of `transform_with_state`, and is stored with the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from statelog.spark.extension_table import EXTENSIONS, ExtensionRow, loaded

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from statelog.spark.query.settings import QuerySettings
    from statelog.spark.query.state_variables import SchemaLike


class Declaration(Protocol):
    """
    What a processor declares to an extension in one call of `init`.

    The only argument is a parser of schemas; it takes a schema, and what it describes for errors.
    """

    def __init__(self, struct: Callable[[SchemaLike, str], StructType]) -> None: ...

    def calls(self) -> Mapping[str, Callable[..., object]]:
        """Return the methods that the extension adds to the handle."""

    def declared(self) -> object:
        """Return what `init` declared."""

    @staticmethod
    def check(declared: object, before: Sequence[object], settings: QuerySettings) -> None:
        """Raise `UsageError` if an operator cannot declare this."""

    @staticmethod
    def batch_part(declared: object | None, settings: QuerySettings) -> object | None:
        """Return what the tasks over a batch frame get; raises `UsageError` where it would not have an effect."""


def declaration_of(row: ExtensionRow) -> type[Declaration]:
    """Return the declaration of an extension, which is imported at its first use."""
    return loaded(row.declaration, type)


def check_declared(
    declared: Mapping[str, object], before: Sequence[Mapping[str, object]], settings: QuerySettings
) -> None:
    """Raise `UsageError` if an operator cannot declare this; see `Declaration.check`."""
    for row in EXTENSIONS:
        if row.name in declared:
            earlier = [operator[row.name] for operator in before if row.name in operator]
            declaration_of(row).check(declared[row.name], earlier, settings)


def batch_parts(declared: Mapping[str, object], settings: QuerySettings) -> dict[str, object]:
    """Return what extensions tell the tasks over a batch frame; see `Declaration.batch_part`."""
    parts = {
        row.name: declaration_of(row).batch_part(declared.get(row.name), settings)
        for row in EXTENSIONS
        if row.declaration
    }
    return {name: part for name, part in parts.items() if part is not None}
