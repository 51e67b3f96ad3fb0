"""
Each name on Flink's pages on the changelog exists here, or its error says what to write.

Flink's names are those of Java; a reader of its pages tries them as they are, and in snake_case.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from statelog import changelog as cl
from statelog.runtime.pool import PoolFuture

CLASSES = """
    AvailabilityProvider BatchingStateChangeUploadScheduler ChangelogStateHandle
    ChangelogStateHandleStreamImpl ChangelogStorageMetricGroup CheckpointStateOutputStream
    CheckpointStreamFactory CheckpointedStateScope CompletableFuture Configuration
    DirectStateChangeUploadScheduler Duration Executor ExecutorService FileSystem
    FsCheckpointStateOutputStream FsCheckpointStreamFactory FsStateChangelogOptions
    FsStateChangelogStorage FsStateChangelogWriter IOException IllegalArgumentException JobID
    KeyGroupRange LocalChangelogRegistry LocalRecoveryConfig MAX_FILE_STATE_THRESHOLD
    MailboxExecutor MemorySize MetricGroup Path ReadableConfig RetryPolicy SequenceNumber
    SequenceNumberRange SnapshotResult StateChange StateChangeFsUploader StateChangeSet
    StateChangeUploadScheduler StateChangeUploader StateChangelogStorage StateChangelogWriter
    StreamStateHandle TaskChangelogRegistry TaskManagerJobMetricGroup TimeoutException UUID
    UploadResult UploadTask UploadTasksResult
"""

MEMBERS = {
    "AvailabilityProvider": "AVAILABLE isAvailable getAvailabilityFuture isApproximatelyAvailable",
    "BatchingStateChangeUploadScheduler": "upload close getAvailabilityProvider",
    "ChangelogOptions": "NUM_UPLOAD_THREADS UPLOAD_BUFFER_SIZE IN_FLIGHT_DATA_LIMIT RETRY_POLICY "
    "RETRY_MAX_ATTEMPTS RETRY_DELAY_AFTER_FAILURE UPLOAD_TIMEOUT PREEMPTIVE_PERSIST_THRESHOLD BASE_PATH "
    "COMPRESSION_ENABLED PERSIST_DELAY PERSIST_SIZE_THRESHOLD NUM_DISCARD_THREADS CACHE_IDLE_TIMEOUT",
    "ChangelogStateHandle": "getHandlesAndOffsets getStreamStateHandles getStreamStateHandle getStateSize "
    "getCheckpointedSize getKeyGroupRange getStorageIdentifier getIntersection getStateHandleId",
    "CheckpointedStateScope": "EXCLUSIVE SHARED",
    "DirectStateChangeUploadScheduler": "upload close getAvailabilityProvider",
    "FileStateHandle": "getFilePath getStateSize openInputStream discardState",
    "FsCheckpointStateOutputStream": "write flush getPos sync close closeAndGetHandle",
    "FsCheckpointStreamFactory": "createCheckpointStateOutputStream MAX_FILE_STATE_THRESHOLD "
    "FsCheckpointStateOutputStream getFileStateThreshold toString",
    "FsStateChangelogStorage": "createWriter createReader close",
    "FsStateChangelogWriter": "append appendMeta initialSequenceNumber nextSequenceNumber persist truncate "
    "truncateAndClose confirm reset close",
    "KeyGroupRange": "of getStartKeyGroup getEndKeyGroup getNumberOfKeyGroups contains getIntersection",
    "PoolFuture": "thenAccept thenApply thenCompose thenRun whenComplete exceptionally handle get join isDone "
    "isCancelled cancel",
    "SequenceNumber": "of next compareTo",
    "SequenceNumberRange": "from to size contains",
    "SnapshotResult": "getJobManagerOwnedSnapshot getTaskLocalSnapshot getStateSize",
    "StateChange": "getKeyGroup getChange ofDataChange ofMetadataChange",
    "StateChangeFsUploader": "upload close",
    "StateChangeSet": "getLogId getSequenceNumber getChanges getSize",
    "StateChangeUploadScheduler": "upload directScheduler fromConfig getAvailabilityProvider close",
    "StateChangeUploader": "upload close",
    "TaskChangelogRegistry": "startTracking stopTracking release",
    "UploadResult": "of streamStateHandle getStreamStateHandle localStreamHandle offset localOffset "
    "sequenceNumber getSequenceNumber size getSize",
    "UploadTask": "changeset changeSets getChangeSets successCallback failureCallback onCompleted onFailed "
    "complete fail getSize isFinished",
    "UploadTasksResult": "tasksOffsets handle localHandle complete getStateSize discard",
}

ARGUMENTS = {
    "BatchingStateChangeUploadScheduler": "uploader maxBatchSize batchTimeout executor",
    "BatchingStateChangeUploadScheduler.from_config": "jobID config metricGroup changelogRegistry "
    "localRecoveryConfig",
    "ChangelogOptions": "numUploadThreads inFlightDataLimit retryPolicy retryMaxAttempts retryDelayAfterFailure "
    "uploadTimeout preemptivePersistThreshold uploadBufferSize",
    "FsCheckpointStreamFactory": "fileSystem checkpointDirectory sharedStateDirectory fileStateSizeThreshold "
    "writeBufferSize",
    "FsStateChangelogStorage": "jobID config metricGroup localRecoveryConfig changelogRegistry",
    "FsStateChangelogStorage.create_writer": "operatorID keyGroupRange mailboxExecutor",
    "FsStateChangelogWriter": "logId keyGroupRange uploader preEmptivePersistThresholdInBytes mailboxExecutor "
    "changelogRegistry localRecoveryConfig localChangelogRegistry",
    "UploadResult.of": "handle localHandle changeSet offset localOffset",
    "UploadTask": "changeSets successCallback failureCallback onCompleted onFailed",
}
"""Arguments of Flink's constructors and static methods, by the call here."""


def spelled(names: str) -> list[str]:
    """Return the names of a list, and those of members in snake_case too."""
    members = [name for name in names.split() if name[0].islower()]
    return [*names.split(), *(re.sub("[A-Z]+", r"_\g<0>", name).lower() for name in members)]


def test_the_pages_are_listed_whole():
    arguments = [name for names in ARGUMENTS.values() for name in names.split()]
    members = [name for names in MEMBERS.values() for name in names.split()]
    assert 175 <= len(CLASSES.split()) + len(members) + len(arguments)


@pytest.mark.parametrize("name", CLASSES.split())
def test_a_name_exists_or_its_error_says_what_to_write(name):
    if name not in cl.__all__:
        with pytest.raises(AttributeError, match=f"; Flink's {name} here: "):
            getattr(cl, name)
        with pytest.raises(ImportError, match=f"; Flink's {name} here: "):
            exec(f"from statelog.changelog import {name}")


@pytest.mark.parametrize("owner", MEMBERS)
def test_a_member_exists_or_its_error_says_what_to_write(owner):
    kind: Any = PoolFuture if owner == "PoolFuture" else getattr(cl, owner)
    fields = {name for base in kind.__mro__ for name in vars(base).get("__annotations__", ())}
    for name in spelled(MEMBERS[owner]):
        if name not in fields and not hasattr(kind, name):
            with pytest.raises(AttributeError, match=f"attribute '{name}'; Flink's {name} here: "):
                getattr(kind, name)


@pytest.mark.parametrize("call", ARGUMENTS)
def test_an_argument_exists_or_its_error_says_what_to_write(call):
    owner, _, method = call.partition(".")
    function: Callable[..., object] = getattr(cl, owner)
    if method == "create_writer":
        storage = cl.FsStateChangelogStorage("memory://arguments")
        function = storage.create_writer
    elif method:
        function = getattr(function, method)
    parameters = inspect.signature(function).parameters
    for name in spelled(ARGUMENTS[call]):
        if name in parameters:
            continue
        with pytest.raises(TypeError) as raised:
            function(**{name: None})
        written = str(raised.value)
        assert f"Flink's {call} here: " in written
        assert f"; {name} is " in written or "storage.create_writer(" in written
