"""The writer through the direct scheduler against the reference model, and inline like on file."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.support.reference_log import ReferenceLog, canonical

import statelog as sl
from statelog import changelog as cl
from statelog.runtime.clock import RandomIds
from statelog.store.paths import LocationPaths
from statelog.testing.faulty_store import FaultyStore

operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 9), st.binary(max_size=9)),
        st.tuples(st.just("meta"), st.just(0), st.binary(max_size=9)),
        st.tuples(
            st.just("batch"),
            st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=9)), max_size=5),
            st.just(b""),
        ),
        st.tuples(st.just("cut"), st.just(0), st.just(b"")),
        st.tuples(st.just("persist"), st.just(0), st.just(b"")),
    ),
    max_size=40,
)


@given(
    steps=operations, inline_bytes=st.sampled_from([0, 300, 10**6]), threshold=st.integers(1, 99)
)
def test_every_persist_holds_what_was_appended(
    steps: list[tuple[str, object, bytes]], inline_bytes: int, threshold: int
) -> None:
    store, ids, model = FaultyStore(), RandomIds(), ReferenceLog()
    files = cl.StateChangeFsUploader(store, paths=LocationPaths("job"), ids=ids)
    uploader = cl.InlineStateChangeUploader(inline_bytes, files, ids=ids)
    options = cl.ChangelogOptions(preemptive_persist_threshold_bytes=threshold)
    with cl.FsStateChangelogStorage(
        store, options=options, scheduler=cl.DirectStateChangeUploadScheduler(uploader)
    ) as storage:
        writer = storage.create_writer("operator", sl.KeyGroupRange(0, 9))
        for step in [*steps, ("persist", 0, b"")]:
            match step:
                case ("append", int(key_group), value):
                    model.append(cl.StateChange(key_group, value))
                    writer.append(key_group, value)
                case ("meta", _, value):
                    model.append(cl.StateChange(-1, value))
                    writer.append_meta(value)
                case ("batch", list(pairs), _):
                    for key_group, value in pairs:
                        model.append(cl.StateChange(key_group, value))
                    writer.append_batch(
                        np.array([each[0] for each in pairs], np.int32),
                        pa.array([each[1] for each in pairs], pa.binary()),
                    )
                case ("cut", _, _):
                    writer.next_sequence_number()
                case _:
                    future = writer.persist(writer.initial_sequence_number(), 3)
                    assert future.done()
                    model.cut()
                    check(storage, future.result().job_manager_owned, model)
        if inline_bytes == 10**6:
            assert {} == store.objects


def check(
    storage: cl.FsStateChangelogStorage,
    handle: cl.ChangelogStateHandle | None,
    model: ReferenceLog,
) -> None:
    assert handle is not None
    again = cl.ChangelogStateHandle.from_json(handle.to_json())
    # Sets are cut by thresholds too; what counts is each key group's order over the whole log.
    everything: dict[int, list[bytes]] = {}
    for each in model.sets(0, model.active_sqn):
        for key_group, values in each.items():
            everything.setdefault(key_group, []).extend(values)
    assert everything == canonical(storage.read(again))
    assert handle.size_bytes == model.size_bytes(0, model.active_sqn)
