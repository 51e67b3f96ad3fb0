"""Delete what no retained checkpoint of a query's location needs; a failure is logged, and ends nothing."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Sequence
from typing import Final

from statelog.checkpoint.clean_up import collect_garbage
from statelog.checkpoint.coordinator import CheckpointCoordinator
from statelog.errors import StatelogError, StoreError
from statelog.runtime.pool import in_background
from statelog.spark.query.settings import QuerySettings
from statelog.store import ObjectStore

_log = logging.getLogger("statelog.spark")
_LAST_CLEAN_UP_S: Final = 10.0


class LocationCleanUp:
    """
    The clean-up of one run of a query.

    Thread: Spark's thread of the query; `finish`: any.
    """

    def __init__(
        self, store: ObjectStore, coordinator: CheckpointCoordinator, settings: QuerySettings
    ) -> None:
        self._store = store
        self._coordinator = coordinator
        self._settings = settings
        self._is_finished = False

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects that no checkpoint names, or log the failure."""
        try:
            self._store.delete(paths)
        except StoreError as error:  # harmless: the next collection of orphans deletes them
            _log.warning("deletion of rows between operators failed: %s", error)

    def when_due(self) -> None:
        """Delete in batches what no retained checkpoint needs, or log the failure."""
        try:
            self._coordinator.clean_up_when_due()
        except StoreError as error:  # harmless: the next collection of orphans deletes the rest
            _log.warning("deletion of what no checkpoint needs failed: %s", error)

    def finish(self) -> None:
        """Delete everything that no retained checkpoint needs, or log the failure; once."""
        if self._is_finished:
            return
        self._is_finished = True
        try:
            in_background(self._coordinator.clean_up, "statelog-last-clean-up").result(
                _LAST_CLEAN_UP_S
            )
        except (StatelogError, TimeoutError) as error:  # harmless: the next run deletes the rest
            _log.warning("deletion at the end of the query failed: %s", str(error) or "time-out")

    def sweep_in_background(self) -> None:
        """Delete orphans of attempts that failed in earlier runs, if they are old enough."""
        threading.Thread(target=self._sweep, name="statelog-sweep", daemon=True).start()

    def _sweep(self) -> None:
        try:
            report = collect_garbage(
                self._store,
                min_age=self._settings.checkpoints.min_age_of_orphans,
                apply=True,
                now=dt.datetime.now(dt.UTC),
                failed_recording_age=self._settings.record_age,
            )
        except StatelogError as error:
            _log.warning("deletion of orphans in %s failed: %s", self._store.url, error)
            return
        if report.deleted:
            _log.info("deleted %d orphans in %s", len(report.deleted), self._store.url)
        for release in report.outside:
            tags = f"deleted {', '.join(release.tags)} in {release.parent}"
            _log.warning("the parent of this fork: %s", release.problem or tags)
