"""Note the broadcast tables that the `init` of a processor asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql.types import StructType

from statelog.spark.query.broadcast import BroadcastTables, read_source, unknown_broadcast
from statelog.spark.query.settings import QuerySettings
from statelog.spark.query.state_variables import SchemaLike, Unusable


class DeclaredBroadcasts:
    """The broadcast tables that a processor asks for."""

    def __init__(self, struct: Callable[[SchemaLike, str], StructType]) -> None:
        self._names: list[str] = []

    def calls(self) -> Mapping[str, Callable[..., object]]:
        """Return `broadcast`."""
        return {"broadcast": self._broadcast}

    def _broadcast(self, name: str) -> Unusable:
        """Note a broadcast table; what is returned cannot be read, because keys do not exist."""
        self._names.append(name)
        return Unusable(
            f"broadcast table {name!r}: read it while rows or timers are handled, not in init()"
        )

    def declared(self) -> tuple[str, ...]:
        """Return their names."""
        return tuple(self._names)

    @staticmethod
    def check(
        declared: Sequence[str], before: Sequence[Sequence[str]], settings: QuerySettings
    ) -> None:
        """Raise `UsageError` if `init` asks for a broadcast table that the query does not have."""
        for name in declared:
            if name not in settings.broadcast:
                raise unknown_broadcast(name, settings.broadcast)

    @staticmethod
    def batch_part(declared: Sequence[str] | None, settings: QuerySettings) -> BroadcastTables:
        """Return the tables as they are now."""
        return {name: read_source(name, source) for name, source in settings.broadcast.items()}
