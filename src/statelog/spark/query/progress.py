"""The figures of one micro-batch, and the user's callbacks that receive them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Final, TypedDict

from statelog.errors import UsageError
from statelog.metrics import Metrics
from statelog.metrics.table import FIGURES, BatchFigures, Number, camel_case
from statelog.model import JsonObject
from statelog.plain_text import facts_as_html


class LargeKeyGroup(TypedDict):
    """A key group that had many rows in a micro-batch."""

    key_group: int
    rows: int
    share: float


class LargeKey(LargeKeyGroup):
    """A key that had many rows in a micro-batch."""

    key: str


_FIRST: Final = ("batch_id", "checkpoint_id", "replayed")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress(BatchFigures):
    """
    The figures of one micro-batch, which are passed to `on_progress`.

    Of a query with several operators, *rows* are those into the first operator and *output_rows*
    those out of the last; the other numbers are sums over all operators.  The figures of extensions
    are attributes too, by their names.

    Args:
        batch_id: Spark's id of the micro-batch.
        checkpoint_id: The checkpoint that it made.
        replayed: Whether an earlier run committed the state, so that only the rows were delivered.
        largest_key_groups: The key groups with the most rows, at most three.
        largest_keys: The keys in them with many rows, at most three; empty while the load is even.
    """

    batch_id: int
    checkpoint_id: int
    replayed: bool = False
    largest_key_groups: Sequence[LargeKeyGroup] = ()
    largest_keys: Sequence[LargeKey] = ()

    def __getattr__(self, name: str) -> Number:
        if name == "extras" or name not in self.extras:
            raise AttributeError(
                f"{type(self).__name__!r} object does not have the attribute {name!r}"
            )
        return self.extras[name]

    @classmethod
    def from_json(cls, values: JsonObject) -> BatchProgress:
        """Parse the JSON form of the figures; unknown names belong to extensions."""
        names = {declared.name for declared in fields(cls)}
        figures = {name: value for name, value in values.items() if name in names}
        extras = {name: value for name, value in values.items() if name not in names}
        return cls(**figures, extras=extras)

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        values = asdict(self)
        values |= values.pop("extras")
        return {name: values.pop(name) for name in _FIRST} | values

    def _repr_html_(self) -> str:
        phases = {f"{name} (driver)": f"{ms:.0f} ms" for name, ms in self.milliseconds.items()}
        slowest = {
            f"{name} (slowest task)": f"{ms:.0f} ms" for name, ms in self.task_milliseconds.items()
        }
        facts = {
            "checkpoint": f"{self.checkpoint_id}{', replayed' if self.replayed else ''}",
            "rows": f"{self.rows} in, {self.output_rows} out, {self.late_rows} late",
            "keys": self.keys,
            **{name.replace("_", " "): value for name, value in self.extras.items() if value},
            "tasks": self.tasks,
            "changes": f"{self.delta_bytes} bytes in {self.objects} objects",
            "largest keys": ", ".join(f"{key['key']} ({key['rows']})" for key in self.largest_keys),
            **phases,
            **slowest,
        }
        return facts_as_html(f"micro-batch {self.batch_id}", facts)

    def __str__(self) -> str:
        phases = " ".join(f"{name}={ms:.0f}" for name, ms in self.milliseconds.items())
        slowest = " ".join(f"{name}={ms:.0f}" for name, ms in self.task_milliseconds.items())
        extras = "".join(f"{name}={value} " for name, value in self.extras.items())
        return (
            f"batch {self.batch_id} checkpoint {self.checkpoint_id}"
            f"{' replayed' if self.replayed else ''}: rows={self.rows} late={self.late_rows} "
            f"keys={self.keys} "
            f"out={self.output_rows} {extras}state_entries={self.state_entries} "
            f"delta_bytes={self.delta_bytes} objects={self.objects} "
            f"object_bytes={self.object_bytes} uploads={self.uploads} "
            f"upload_retries={self.upload_retries} repeated_requests={self.repeated_requests} "
            f"log_behind_snapshot={self.log_bytes}B/"
            f"{self.log_handles} tasks={self.tasks} ms[{phases}] slowest_task_ms[{slowest}]"
        )


BatchProgress.__doc__ = "\n".join(
    [
        f"{BatchProgress.__doc__}".rstrip(),
        *(f"        {name}: {figure.text}" for name, figure in FIGURES.items()),
        "        extras: The figures of extensions, by name.",
    ]
)


def source_metrics(progress: BatchProgress) -> dict[str, str]:
    """
    Format the figures of a micro-batch as a source's metrics in Spark's progress.

    Spark's type for them is a map of texts, and its names are in camelCase.
    """
    numbers = {
        camel_case(name): str(value).lower() if isinstance(value, bool) else str(round(value))
        for name, value in progress.to_json().items()
        if isinstance(value, int | float)
    }
    phases = progress.milliseconds.items()
    return numbers | {f"{camel_case(phase)}Ms": str(round(ms)) for phase, ms in phases}


OnProgress = Callable[[BatchProgress], None]
"""Called on the driver after each micro-batch."""


@dataclass(frozen=True, slots=True)
class Observers:
    """
    The caller's objects that observe a query on the driver.

    Args:
        on_progress: Called after each micro-batch; None for none.
        metrics: Counts checkpoints, snapshots and micro-batches; None for none.
    """

    on_progress: OnProgress | None = None
    metrics: Metrics | None = None

    def after(self, before: Observers) -> Observers:
        """
        Combine these observers with the observers of earlier operators.

        Raise `UsageError` for two of a kind.
        """
        pairs = {
            "on_progress": (self.on_progress, before.on_progress),
            "metrics": (self.metrics, before.metrics),
        }
        for name, pair in pairs.items():
            if None not in pair and pair[0] != pair[1]:
                raise UsageError(
                    f"{name} differs from the value of an earlier operator, but it applies to the whole query: pass "
                    "it only once"
                )
        return Observers(self.on_progress or before.on_progress, self.metrics or before.metrics)


NO_OBSERVERS: Final = Observers()
