"""
Put whole objects by the policy of change sets: attempts, time-outs, metrics, ownership.

A snapshot, staged rows and a recording are objects of their own.  `RetryingUploads` runs each of them
as an upload without tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from statelog.changelog.registry import TaskChangelogRegistry
from statelog.changelog.upload.retrying import RetryingUploads
from statelog.changelog.upload.task import UploadTask, UploadTasksResult
from statelog.core.retry_policy import RetryPolicy
from statelog.errors import ClosedError, StatelogError, UploadFailedError
from statelog.format.buffers import Buffers, pieces_of
from statelog.metrics import Metrics
from statelog.model import FileStateHandle
from statelog.runtime.driver import Runtime
from statelog.runtime.pool import PoolFuture
from statelog.store.api import ObjectStore


class ObjectUploads:
    """
    Puts objects for a storage; the caller waits for each.

    Args:
        store: The store of the objects.
        policy: When to retry, and when to start a hedged attempt.
        runtime: Clock, lock, timers and the upload pool.
        metrics: Records attempts and sizes.
        registry: Tracks the objects, and deletes those that are given up.
    """

    def __init__(
        self,
        store: ObjectStore,
        policy: RetryPolicy,
        runtime: Runtime,
        metrics: Metrics,
        registry: TaskChangelogRegistry,
    ) -> None:
        self._store = store
        self._policy = policy
        self._runtime = runtime
        self._metrics = metrics
        self._registry = registry
        self._running: set[RetryingUploads] = set()
        self._closed = False

    def put(self, new_path: Callable[[], str], data: Buffers) -> str:
        """
        Put an object and return its name.

        The caller owns it: `hand_over` or `give_up` ends the tracking.

        Args:
            new_path: Makes a name; called once for each attempt, so every name is new.
            data: The bytes; must not change during the call.

        Raises:
            UploadFailedError: Every attempt failed; what they wrote is deleted as far as possible.
            ClosedError: The storage is closed.

        Blocks: For the store.   Thread: any.
        """
        uploader = _ObjectUploader(self._store, new_path, pieces_of(data), self._registry)
        attempts = _Attempts(uploader, self._policy, self._runtime, self._metrics)
        with self._runtime.lock:
            if self._closed:
                raise uploader.closed_error()
            self._running.add(attempts)
        future: PoolFuture[str] = PoolFuture(self._runtime.callback_pool)
        future.set_running_or_notify_cancel()

        def ended(result: UploadTasksResult | None, error: BaseException | None, _: int) -> None:
            if result is None:
                future.set_exception(error)
            else:
                future.set_result(uploader.path_of(result))

        try:
            attempts.start([], ended, _released)
            return future.result()
        finally:
            with self._runtime.lock:
                self._running.discard(attempts)

    def hand_over(self, paths: Iterable[str]) -> None:
        """Stop tracking objects that another owner deletes from here on, such as a checkpoint."""
        for path in paths:
            self._registry.stop_tracking(FileStateHandle(path, 0))
            self._registry.release(FileStateHandle(path, 0))

    def give_up(self, paths: Iterable[str]) -> None:
        """Delete objects that were not handed over."""
        for path in paths:
            self._registry.release(FileStateHandle(path, 0))

    def close(self) -> None:
        """Fail the puts that run with `ClosedError`; objects of late attempts are deleted."""
        with self._runtime.lock:
            self._closed = True
            running = list(self._running)
        for attempts in running:
            attempts.close()


class _ObjectUploader:
    """Puts one object; each attempt under a new name."""

    def __init__(
        self,
        store: ObjectStore,
        new_path: Callable[[], str],
        pieces: Sequence[bytes | bytearray | memoryview],
        registry: TaskChangelogRegistry,
    ) -> None:
        self._store = store
        self._new_path = new_path
        self._pieces = pieces
        self._registry = registry
        self._size_bytes = sum(len(memoryview(piece).cast("B")) for piece in pieces)

    def upload(self, tasks: Sequence[UploadTask]) -> UploadTasksResult:
        """Put the object, or raise and leave nothing."""
        path = self._new_path()
        try:
            self._store.put(path, self._pieces)
        except BaseException:
            self._clean_up(path)
            raise
        handle = FileStateHandle(path, self._size_bytes)
        self._registry.start_tracking(handle, 1)
        return UploadTasksResult(tasks=(), handles=(handle,), payload_bytes=self._size_bytes)

    def path_of(self, result: UploadTasksResult) -> str:
        """Return the name of the object that `upload` put."""
        return next(each.path for each in result.handles if isinstance(each, FileStateHandle))

    def discard(self, result: UploadTasksResult) -> None:
        """Delete the object of a losing attempt."""
        for handle in result.handles:
            self._registry.discard(handle)

    def close(self) -> None:
        """Do nothing: the store is the caller's."""

    def failure(self, error: BaseException | None, attempts: str) -> UploadFailedError:
        """Return the error of a put whose attempts all failed."""
        failure = UploadFailedError(
            f"{self._size_bytes} bytes could not be written to {self._store.url} ({attempts})"
        )
        failure.__cause__ = error
        return failure

    def closed_error(self) -> ClosedError:
        """Return the error of a put that the end of its storage interrupted."""
        return ClosedError(
            f"the changelog storage was closed before {self._size_bytes} bytes were written; open "
            "a new one"
        )

    def _clean_up(self, path: str) -> None:
        try:
            self._store.delete([path])
        except Exception:
            return  # the error of the put is raised; the next clean-up deletes the object


class _Attempts(RetryingUploads):
    """The attempts of one object, with its words for a failure."""

    def __init__(
        self, uploader: _ObjectUploader, policy: RetryPolicy, runtime: Runtime, metrics: Metrics
    ) -> None:
        super().__init__(uploader, policy, runtime, metrics)
        self._object = uploader

    def _explain(self, upload: object, error: BaseException | None, attempts: str) -> StatelogError:
        if self._closed:
            return self._object.closed_error()
        return self._object.failure(error, attempts)


def _released() -> None:
    """Ignore the return of the last attempt: an object holds no capacity."""
