"""Where a worker keeps its state: in memory, or on the host's disk too."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from statelog.errors import InvalidOptionsError
from statelog.runtime.clock import IdSource
from statelog.state.columnar.run_files import RunFiles, default_folder
from statelog.state.columnar.sorted_run import RowLayout
from statelog.state.heap.memory import MemoryLimits

_log = logging.getLogger("statelog")

BACKENDS: Final = ("auto", "memory", "disk")
DEFAULT_BUDGET: Final = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StateBackendConfig:
    """
    Choose where a worker keeps its state.

    Args:
        kind: "auto": dict tables while they fit into the budget, then columns in files of the host;
            "memory": columns too stay in memory; "disk": columns in files from the start.
        budget_bytes: Memory of a worker process, >= 64 MiB; see `MemoryLimits`.
        folder: Host-local folder for files; None for one in the system's temporary directory.

    Raises:
        InvalidOptionsError: An argument is out of range.
    """

    kind: str = "auto"
    budget_bytes: int = DEFAULT_BUDGET
    folder: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in BACKENDS:
            raise InvalidOptionsError(
                f"stateBackend is one of {', '.join(BACKENDS)}; got {self.kind!r}"
            )
        MemoryLimits(self.budget_bytes)

    @property
    def input_bytes(self) -> int:
        """Bytes of rows, as Python objects, that a task processes at once."""
        return self.limits().input_bytes

    def limits(self) -> MemoryLimits:
        """Return how much memory the state may use."""
        if self.kind == "disk":
            return MemoryLimits(self.budget_bytes, dict_rows=0)
        return MemoryLimits(self.budget_bytes)

    def opener(self, location: str, ids: IdSource) -> Callable[[RowLayout], RunFiles | None]:
        """Return a function that opens the host's files; it may return None."""

        def open_runs(layout: RowLayout) -> RunFiles | None:
            if self.kind == "memory":
                return None
            folder = default_folder() if self.folder is None else Path(self.folder)
            try:
                return RunFiles(folder, location, layout, ids)
            except OSError as error:
                _log.warning(
                    "no local files for state (%s); large state stays in memory. Set localDirectory "
                    "to a folder on the host's disk",
                    error,
                )
                return None

        return open_runs
