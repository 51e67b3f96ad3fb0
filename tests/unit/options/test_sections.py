"""Options: Flink's defaults, Flink's keys, and refusals that help."""

import datetime as dt

import pytest

from statelog import changelog as cl
from statelog.errors import InvalidOptionsError
from statelog.options import load_options

FLINK = "state.changelog.dstl.dfs."


def test_the_defaults_are_flinks():
    options = cl.ChangelogOptions()
    assert (False, 5 << 20, 10 << 20, 5, 1, 100 << 20, "fixed", 3) == (
        options.compression_enabled,
        options.preemptive_persist_threshold_bytes,
        options.batch_persist_size_threshold_bytes,
        options.upload_num_threads,
        options.discard_num_threads,
        options.upload_max_in_flight_bytes,
        options.upload_retry_policy,
        options.upload_max_attempts,
    )
    assert (
        dt.timedelta(milliseconds=10),
        dt.timedelta(seconds=1),
        dt.timedelta(milliseconds=500),
        dt.timedelta(minutes=10),
    ) == (
        options.batch_persist_delay,
        options.upload_timeout,
        options.upload_next_attempt_delay,
        options.download_local_cache_idle_timeout,
    )


def test_flinks_keys_are_understood_in_all_spellings():
    expected = cl.ChangelogOptions(
        base_path="s3://bucket/log",
        compression_enabled=True,
        preemptive_persist_threshold_bytes=5 << 20,
        batch_persist_delay=dt.timedelta(milliseconds=10),
        upload_max_attempts=7,
        download_local_cache_idle_timeout=dt.timedelta(minutes=3),
    )
    assert expected == cl.ChangelogOptions.from_mapping(
        {
            FLINK + "base-path": "s3://bucket/log",
            FLINK + "compression.enabled": "true",
            "dstl.dfs.preemptive-persist-threshold": "5 mb",
            "batch_persist_delay": "PT0.01S",
            "upload.max-attempts": "7",
            FLINK + "upload.buffer-size": "2 mb",  # accepted: there is nothing to buffer
            "upload.buffer-size": "2 mb",
            FLINK + "download.local-cache.idle-timeout-ms": "3 min",
        }
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("17", 17), ("5MB", 5 << 20), ("2 kb", 2048), ("1 gibibytes", 1 << 30), (12, 12)],
)
def test_sizes_have_binary_units(text, expected):
    options = cl.ChangelogOptions.from_mapping({"preemptive_persist_threshold": text})
    assert expected == options.preemptive_persist_threshold_bytes


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("10 ms", 10), ("0", 0), ("2s", 2000), ("PT1M", 60000), ("P1DT1H", 90000000), (5, 5)],
)
def test_durations_come_in_many_forms(text, milliseconds):
    options = cl.ChangelogOptions.from_mapping({"upload.timeout": text})
    assert dt.timedelta(milliseconds=milliseconds) == options.upload_timeout


@pytest.mark.parametrize(
    "settings",
    [
        {"batch.persist-delay": "soon"},
        {"batch.persist-delay": "P"},
        {"compression.enabled": "maybe"},
        {"upload.max-in-flight": "5 apples"},
        {"base-path": 5},
        {"dstl.dfs.base-path": "a", FLINK + "base-path": "b"},
        {"upload.retry-policy": "often"},
        {"upload.num-threads": 0},
        {"upload.timeout": dt.timedelta(seconds=-1)},
        {"preemptive-persist-threshold": -1},
        {"batch.persist-size-threshold": "101 mb"},
        {"upload.max-in-flight": 0, "batch.persist-size-threshold": 0},
    ],
    ids=lambda settings: " ".join(f"{key}={value}" for key, value in settings.items()),
)
def test_nonsense_is_refused(settings):
    with pytest.raises(InvalidOptionsError):
        cl.ChangelogOptions.from_mapping(settings)


def test_a_key_of_another_section_is_named_with_the_function_that_takes_it():
    flink = {
        "state.changelog.dstl.dfs.upload.num-threads": "10",
        "execution.checkpointing.num-retained": "2",
    }
    assert 10 == load_options(flink, environ={}).changelog.upload_num_threads
    for key in ("execution.checkpointing.num-retained", "checkpoint.retained"):
        with pytest.raises(InvalidOptionsError, match=r"section checkpoint.*`load_options`"):
            cl.ChangelogOptions.from_mapping({key: "2"})
