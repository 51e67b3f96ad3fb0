"""Where the settings of a query come from, and what is said of wrong ones."""

from dataclasses import fields
from typing import Any

import pytest

pytest.importorskip("pyspark")

from statelog.errors import InvalidOptionsError, UsageError
from statelog.extensions.columns.aggregation import aggregate
from statelog.metrics import Metrics
from statelog.options import (
    OPTIONS,
    ChangelogOptions,
    SnapshotPolicy,
    task_changelog_options,
)
from statelog.options.sections import FOREIGN
from statelog.spark.api import transform_with_state, transform_with_state_in_pandas
from statelog.spark.query.delivery import Delivery
from statelog.spark.query.progress import NO_OBSERVERS, BatchProgress, Observers
from statelog.spark.query.record import RECORD, RecordRule
from statelog.spark.query.resolve import refuse_unknown_arguments, resolve_settings
from statelog.spark.query.settings import SETTINGS, OperatorSettings, QuerySettings


def settled(
    conf: dict[str, str] | None = None,
    arguments: dict[str, Any] | None = None,
    written: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
) -> QuerySettings:
    keys = {f"spark.statelog.{key}": value for key, value in (conf or {}).items()}
    return resolve_settings(keys, arguments or {}, written, environ=environ or {})


def test_without_any_setting_there_are_the_defaults() -> None:
    assert QuerySettings() == settled()
    assert QuerySettings() == resolve_settings(
        {"spark.sql.shuffle.partitions": "7"}, {"tasks": None}
    )


def test_every_setting_can_be_configured_as_text() -> None:
    found = settled(
        {
            "stateLocation": "s3://bucket/jobs",
            "delivery": "Direct",
            "tasks": "3",
            "maxParallelism": "12",
            "inlineBytes": "64 kb",
            "fsync": "false",
            "retainedCheckpoints": "9",
            "checkpoint.compress-metadata": "false",
            "snapshot.max-log-handles": "5",
            "storageOptions.aws_region": "eu-central-1",
            "record": '["a", ["b", 2]]',
            "recordBytes": "1 mb",
            "recordCheckpoints": "7",
            "recordAge": "36 h",
        }
    )
    assert RecordRule(keys=(("a",), ("b", 2))) == found.record
    assert (1 << 20, 7) == (found.record_bytes, found.record_checkpoints)
    assert 36 * 3600 == found.record_age.total_seconds()
    assert ("s3://bucket/jobs", None) == (found.base_location, found.state_location)
    assert (Delivery.DIRECT, 3, 12) == (found.delivery, found.tasks, found.max_parallelism)
    assert (65536, False) == (found.inline_bytes, found.fsync)
    assert (9, False) == (found.checkpoints.retained, found.checkpoints.compress_metadata)
    assert 5 == found.snapshot_policy.max_log_handles
    assert {"aws_region": "eu-central-1"} == found.storage_options


def test_the_writer_counts_before_the_code_and_the_code_before_the_session() -> None:
    conf = {
        "tasks": "2",
        "retainedCheckpoints": "4",
        "delivery": "direct",
        "storageOptions.region": "a",
    }
    code: dict[str, Any] = {
        "tasks": 5,
        "retainedCheckpoints": 6,
        "fsync": False,
        "storageOptions": {"region": "b", "endpoint": "x"},
    }
    written = {"tasks": "7", "storageOptions.region": "c", "checkpoint": "41", "adopt": "true"}
    found = settled(conf, code, written)
    assert (7, 6, Delivery.DIRECT) == (found.tasks, found.checkpoints.retained, found.delivery)
    assert {"region": "c", "endpoint": "x"} == found.storage_options
    assert (41, True, False) == (found.checkpoint, found.adopt, found.fsync)
    assert (5, 6) == (settled(conf, code).tasks, settled(conf, code).checkpoints.retained)


def test_options_come_from_flinks_keys_and_the_environment_too() -> None:
    environ = {"STATELOG_CHECKPOINT_RETAINED": "8"}
    assert 8 == settled(environ=environ).checkpoints.retained
    found = settled({"execution.checkpointing.num-retained": "5"}, environ=environ)
    assert 5 == found.checkpoints.retained
    policy = SnapshotPolicy(max_log_handles=3)
    found = settled({"snapshot.max-log-handles": "9"}, {"snapshotPolicy": policy})
    assert policy == found.snapshot_policy


@pytest.mark.parametrize(
    ("conf", "arguments", "written", "said"),
    [
        ({"delivry": "direct"}, {}, {}, "spark.statelog.delivry.*did you mean 'delivery'"),
        ({"state-locatoin": "x"}, {}, {}, "did you mean 'stateLocation'"),
        ({"checkpoint.retaind": "2"}, {}, {}, "did you mean 'checkpoint.retained'"),
        ({"nonsense": "2"}, {}, {}, "spark.statelog.nonsense.*unknown"),
        (
            {"metrics": "x"},
            {},
            {},
            "metrics is not a setting: give it to transform_with_state as an",
        ),
        ({}, {}, {"on-progress": print}, "writer's option.*on_progress is not a setting"),
        ({"tasks": "many"}, {}, {}, "spark.statelog.tasks.*a whole number"),
        ({"delivery": "twice"}, {}, {}, '"staged" or "direct", not .twice.'),
        ({"checkpoint": "3"}, {}, {}, "give it in the code, or as an option of the writer"),
        ({"operator": "x"}, {}, {}, "no effect there"),
        (
            {"changelog.base-path": "x"},
            {},
            {},
            "base-path has no effect in a query.*set stateLocation",
        ),
        ({"tasks": "2", "TASKS": "3"}, {}, {}, "tasks is set a second time"),
        (
            {"retainedCheckpoints": "2", "checkpoint.retained": "3"},
            {},
            {},
            "checkpoint.retained.* a second",
        ),
        (
            {"maxParallelism": "4"},
            {"tasks": 5},
            {},
            r"tasks must be at most maxParallelism \(4\), not 5 \(tasks comes from argument 'tasks', maxP",
        ),
        ({}, {"tasks": 0}, {}, "tasks must be a whole number, at least 1, not 0"),
        ({}, {"minTasks": 0}, {}, "minTasks must be a whole number, at least 1, not 0"),
        ({}, {"maxTasks": 129}, {}, "maxTasks must be at most maxParallelism"),
        ({"maxTasks": "2"}, {"minTasks": 3}, {}, r"minTasks must be at most maxTasks \(2\), not 3"),
        ({}, {"maxParallelism": 0}, {}, "maxParallelism must be a whole number, at least 1, not 0"),
        (
            {},
            {"inlineBytes": -1},
            {},
            "inlineBytes must be a number of bytes.*, at least 0, not -1",
        ),
        ({}, {"delivery": 7}, {}, "argument 'delivery'.*staged.* or .direct., not 7"),
        ({}, {"checkpoint": -2}, {}, '"latest", "empty" or a checkpoint id'),
        ({}, {"checkpoint": "oldest"}, {}, '"latest", "empty" or a checkpoint id'),
        ({}, {"adopt": True, "checkpoint": "empty"}, {}, "remove one of them"),
        (
            {},
            {"retainedCheckpoints": 0},
            {},
            "checkpoint.retained must be a whole number, at least 1 .*, not 0. A tag",
        ),
        ({}, {}, {"maxParallelism": 4}, "give it to transform_with_state"),
        ({}, {}, {"statelocation2": 4}, "statelog.statelocation2.*did you mean 'stateLocation'"),
    ],
)
def test_a_wrong_setting_is_named_with_its_place(
    conf: dict[str, str], arguments: dict[str, Any], written: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidOptionsError, match=said):
        settled(conf, arguments, written)


def test_what_the_code_may_say_is_the_table() -> None:
    names = set(SETTINGS)
    assert names == set(OperatorSettings.__annotations__)
    assert OperatorSettings.__doc__ is not None
    assert all(f"        {name}: (" in OperatorSettings.__doc__ for name in names)
    for function in (transform_with_state, transform_with_state_in_pandas, aggregate):
        text = " ".join((function.__doc__ or "").split())
        assert f"ee `OperatorSettings`: {', '.join(OperatorSettings.__annotations__)}." in text
    undeclared = {one.name for one in fields(QuerySettings) if not one.metadata}
    assert {"base_location", "changelog", "checkpoints"} == undeclared


EFFECTIVE = {
    "changelog.compression.enabled": True,
    "changelog.preemptive-persist-threshold": 5_000,
    "changelog.batch.persist-delay": "7 ms",
    "changelog.batch.persist-size-threshold": 6_000,
    "changelog.upload.num-threads": 9,
    "changelog.discard.num-threads": 2,
    "changelog.upload.max-in-flight": 7_000,
    "changelog.upload.retry-policy": "exponential",
    "changelog.upload.timeout": "3 s",
    "changelog.upload.max-attempts": 8,
    "changelog.upload.next-attempt-delay": "4 ms",
    "changelog.batch.fixed-delay": True,
    "changelog.backpressure-timeout": "1 min",
}


def test_the_options_of_the_changelog_take_effect_in_a_query() -> None:
    expected = ChangelogOptions.from_mapping(EFFECTIVE)
    assert expected == settled({}, EFFECTIVE).changelog
    assert expected == settled({key: str(value) for key, value in EFFECTIVE.items()}).changelog
    flink = {
        f"state.changelog.dstl.dfs.{key.removeprefix('changelog.')}": value
        for key, value in EFFECTIVE.items()
        if key not in ("changelog.batch.fixed-delay", "changelog.backpressure-timeout")
    }
    ours = {key: EFFECTIVE[key] for key in list(EFFECTIVE)[-2:]}
    assert expected == settled({}, flink | ours).changelog


def test_an_option_takes_effect_in_a_query_or_is_rejected_by_name() -> None:
    """Every key of every section, and every key of Flink's."""
    keys = {key: spec for spec in OPTIONS for key in (spec.key, *spec.other_keys)}
    sections = {spec.key for spec in OPTIONS if spec.section in ("checkpoint", "snapshot")}
    for key, spec in keys.items():
        assert bool(spec.not_in_query) == (spec.key not in EFFECTIVE | dict.fromkeys(sections))
        for conf, arguments, written in (
            ({key: "1"}, {}, {}),
            ({}, {key: "1"}, {}),
            ({}, {}, {key: "1"}),
        ):
            if spec.not_in_query:
                with pytest.raises(InvalidOptionsError, match="has no effect in a query") as raised:
                    settled(conf, arguments, written)
                assert key in str(raised.value)
                assert spec.not_in_query in str(raised.value)
    for foreign in FOREIGN:
        for key in foreign.keys:
            if foreign.allowed is None:
                with pytest.raises(InvalidOptionsError, match=f"{key} has no effect in a query"):
                    settled({key: "1"})
            else:
                assert settled() == settled({key: str(foreign.allowed)})


def test_tasks_have_defaults_of_their_own_within_the_budget() -> None:
    options = settled({"memoryBudget": "256 mb"}).changelog
    assert (16 << 20, 4 << 20, 4 << 20) == (
        options.upload_max_in_flight_bytes,
        options.preemptive_persist_threshold_bytes,
        options.batch_persist_size_threshold_bytes,
    )
    assert settled().changelog == QuerySettings().changelog == task_changelog_options()
    assert options.upload_timeout.total_seconds() == 30
    written = settled({"memoryBudget": "256 mb"}, {}, {"changelog.upload.max-in-flight": "1 gb"})
    assert written.changelog.upload_max_in_flight_bytes == 1 << 30


def test_a_variable_without_effect_in_a_query_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    environ = {
        "STATELOG_LOCAL_RECOVERY_BACKUP": "false",
        "STATELOG_CHANGELOG_UPLOAD_MAX_ATTEMPTS": "9",
    }
    found = resolve_settings({}, {}, environ=environ)
    assert found.changelog.upload_max_attempts == 9
    assert "STATELOG_LOCAL_RECOVERY_BACKUP has no effect in a query" in caplog.text
    assert "MAX_ATTEMPTS" not in caplog.text


def test_the_state_lies_where_the_query_is_or_under_its_name() -> None:
    assert "ckpt/statelog" == settled().location("ckpt/", None)
    assert "mine" == settled({"stateLocation": "base"}, {"stateLocation": "mine"}).location(
        "c", "q"
    )
    for word in (
        settled({"stateLocation": "checkpoint"}),
        settled({"stateLocation": "base"}, {"stateLocation": "checkpoint"}),
        settled({"stateLocation": "base"}, {}, {"stateLocation": "checkpoint"}),
    ):
        assert "ckpt/statelog" == word.location("ckpt/", None)
    base = settled({"stateLocation": "s3://bucket/jobs/"})
    assert "s3://bucket/jobs/totals" == base.location("c", "totals")
    for name in (None, "", "a/b", ".."):
        with pytest.raises(UsageError, match="queryName"):
            base.location("c", name)
    assert "own" == settled({"stateLocation": "b"}, {}, {"stateLocation": "own"}).location(
        "c", None
    )


def test_tasks_are_bounded_by_the_cores_unless_said_otherwise() -> None:
    assert (1, 4) == QuerySettings().task_bounds(4)
    assert (1, 3) == QuerySettings(max_parallelism=3).task_bounds(4)
    assert (6, 6) == QuerySettings(min_tasks=6).task_bounds(4)
    assert (2, 9) == QuerySettings(min_tasks=2, max_tasks=9).task_bounds(4)
    assert (5, 5) == QuerySettings(tasks=5).task_bounds(4)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("failed", RecordRule()),
        ("Failed", RecordRule()),
        ("0.25", RecordRule(rate=0.25)),
        (1, RecordRule(rate=1.0)),
        (["a", ("b", 2)], RecordRule(keys=(("a",), ("b", 2)))),
        ([5], RecordRule(keys=((5,),))),
        ("[5]", RecordRule(keys=((5,),))),
        (0, None),
        ("off", None),
        ("", None),
    ],
)
def test_what_is_recorded_is_a_list_a_share_or_what_failed(given: object, meant: object) -> None:
    assert meant == RECORD.parse(given, "record")


@pytest.mark.parametrize("given", [True, 1.5, -0.1, "everything", [], {"a": 1}, None, float("nan")])
def test_what_is_recorded_is_nothing_else(given: object) -> None:
    with pytest.raises(
        InvalidOptionsError, match=r"record must be a list of keys, the share.*, not a \w+$"
    ):
        RECORD.parse(given, "record")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("delivry", r"; did you mean 'delivery'\?$"),
        ("zzz", "; it takes Spark's"),
    ],
)
def test_an_unknown_argument_is_refused_with_the_nearest_name(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"no argument {name}{hint}"):
        refuse_unknown_arguments({name: 1, "tasks": 2, "retainedCheckpoints": 3})


def test_the_objects_that_observe_a_query_are_no_settings() -> None:
    with pytest.raises(UsageError, match="has no argument metrics, on_progress"):
        refuse_unknown_arguments({"metrics": Metrics(), "on_progress": print})


def test_observers_are_given_once_in_a_query() -> None:
    metrics, seen = Metrics(), list[BatchProgress]()
    first = Observers(seen.append)
    assert Observers(seen.append, metrics) == Observers(metrics=metrics).after(first)
    assert first == first.after(NO_OBSERVERS) == NO_OBSERVERS.after(first) == first.after(first)
    with pytest.raises(UsageError, match="on_progress differs here from an operator before"):
        Observers(print).after(first)
    with pytest.raises(UsageError, match="metrics differs here"):
        Observers(metrics=metrics).after(Observers(metrics=Metrics()))
