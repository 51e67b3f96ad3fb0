"""The place and form in which a query writes its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from statelog.errors import UsageError
from statelog.spark.stream import temporary_checkpoint

OptionValue = bool | float | int | str | None
"""The value of an option of Spark's writers."""


@dataclass(frozen=True, slots=True)
class Target:
    """
    The place and form in which output is written.

    Args:
        source: The format; None for the session's default.
        table: Name of a table, or None.
        partition_by, cluster_by: Columns by which files are partitioned or clustered.
        settings: The sink's options: lower-case key -> key and value.
    """

    source: str | None = None
    table: str | None = None
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    settings: Mapping[str, tuple[str, OptionValue]] = field(
        default_factory=lambda: MappingProxyType({})
    )

    def with_option(self, key: str, value: OptionValue) -> Target:
        """
        Return the target with one more option.

        The case of a key has no meaning.
        """
        return replace(self, settings={**self.settings, key.lower(): (key, value)})

    @property
    def is_one_time(self) -> bool:
        """Whether Spark gives a query with this sink a temporary checkpointLocation."""
        return self.table is None and (self.source or "").lower() in temporary_checkpoint.SINKS

    def option(self, key: str, default: OptionValue) -> OptionValue:
        """Return the value of an option."""
        return self.settings.get(key.lower(), (key, default))[1]

    def options(self) -> dict[str, OptionValue]:
        """Return the options by the keys that the caller typed."""
        return dict(self.settings.values())


def columns_of(names: Sequence[str], wanted: Sequence[str]) -> tuple[str, ...]:
    """
    Return *wanted* as the output spells them.

    Args:
        names: Columns of the output.
        wanted: Columns to partition or cluster by; the case has no meaning.

    Raises:
        UsageError: The output lacks one of them.
    """
    spelled = {name.lower(): name for name in names}
    for name in wanted:
        if name.lower() not in spelled:
            raise UsageError(
                f"cannot partition or cluster the output by {name!r}: it has the columns "
                f"{', '.join(names)}"
            )
    return tuple(spelled[name.lower()] for name in wanted)
