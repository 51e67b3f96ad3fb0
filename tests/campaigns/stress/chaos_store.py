"""A real store behind real threads, with faults drawn at random and answers that come late."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from statelog.errors import StoreError
from statelog.store.api import Buffers, ObjectStore
from statelog.testing.faulty_store import FaultKind, FaultPlan, OddError, joined


class ChaosStore:
    """
    An `ObjectStore` around another one.

    A hang is long, not for ever: its thread comes back, so that the end of a test can tell what a
    late answer has left behind.  `inner` is the truth; reads are never harmed.
    """

    def __init__(
        self,
        inner: ObjectStore,
        seed: int,
        plan: FaultPlan,
        *,
        harm_deletes: bool,
        hang_s: float = 0.5,
    ) -> None:
        self.inner = inner
        self.plan = plan
        self.refused: set[str] = set()
        self.faults = 0
        self.faults_by_kind: Counter[str] = Counter()
        self.puts = 0
        self._harm_deletes = harm_deletes
        self._hang_s = hang_s
        self._rng = random.Random(seed)
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def heal(self) -> None:
        self.plan = FaultPlan(latency_ns=100_000)

    def put(self, path: str, data: Buffers) -> None:
        kind = self._fault()
        with self._lock:
            self.puts += 1
        if kind in (FaultKind.NONE, FaultKind.LOST_ANSWER, FaultKind.SILENT):
            self.inner.put(path, data)
        elif kind is FaultKind.TORN:
            whole = joined(data)
            self.inner.put(path, whole[: len(whole) // 2])
        if kind in (FaultKind.HANG, FaultKind.SILENT):
            time.sleep(self._hang_s)
        self._answer(kind, path)

    def delete(self, paths: Iterable[str]) -> None:
        names = list(paths)
        kind = self._fault() if self._harm_deletes else FaultKind.NONE
        if kind in (FaultKind.NONE, FaultKind.LOST_ANSWER, FaultKind.SILENT):
            self.inner.delete(names)
        else:
            with self._lock:
                self.refused.update(names)
        self._answer(kind, str(names))

    def _fault(self) -> FaultKind:
        with self._lock:
            fault = self.plan.draw(self._rng)
            if fault.kind is not FaultKind.NONE:
                self.faults += 1
                self.faults_by_kind[fault.kind.value] += 1
        time.sleep(fault.latency_ns / 1e9)
        return fault.kind

    def _answer(self, kind: FaultKind, path: str) -> None:
        if kind is FaultKind.ODD_ERROR:
            raise OddError(f"odd fault at {path}")
        if kind not in (FaultKind.NONE, FaultKind.SILENT):
            raise StoreError(f"{kind.value} at {path}", path=path)
