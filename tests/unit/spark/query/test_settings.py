"""Where the settings of a query come from, and what is said of wrong ones."""

from dataclasses import fields
from typing import Any

import pytest

from statelog.core.task_count import TaskBounds
from statelog.errors import InvalidOptionsError, UsageError
from statelog.extensions.columns.aggregation.api import aggregate
from statelog.metrics import Metrics
from statelog.options import OPTIONS, ChangelogOptions, SnapshotPolicy, StateOptions, task_options
from statelog.options.sections import FOREIGN
from statelog.spark.api import transform_with_state, transform_with_state_in_pandas
from statelog.spark.query.delivery import Delivery
from statelog.spark.query.progress import NO_OBSERVERS, BatchProgress, Observers
from statelog.spark.query.record import Record
from statelog.spark.query.resolve import refuse_unknown_arguments, resolve_settings
from statelog.spark.query.settings import SETTINGS, OperatorSettings, QuerySettings


def settled(
    conf: dict[str, str] | None = None, arguments: dict[str, Any] | None = None,
    written: dict[str, Any] | None = None, environ: dict[str, str] | None = None,
) -> QuerySettings:  # fmt: skip
    keys = {f"spark.statelog.{key}": value for key, value in (conf or {}).items()}
    return resolve_settings(keys, arguments or {}, written, environ=environ or {})


def test_without_any_setting_there_are_the_defaults() -> None:
    assert QuerySettings() == settled()
    assert QuerySettings() == resolve_settings(
        {"spark.sql.shuffle.partitions": "7"}, {"tasks": None}
    )


def test_every_setting_can_be_configured_as_text() -> None:
    query = settled(
        {
            "baseLocation": "s3://bucket/jobs", "delivery": "Direct", "tasks": "3",
            "maxParallelism": "12", "retainedCheckpoints": "9",
            "checkpoint.compress-metadata": "false", "snapshot.max-log-handles": "5",
            "stream.data-inline-threshold": "64 kb", "state.backend": "disk",
            "state.backend.rocksdb.localdir": "/mnt/ssd",
            "storageOptions.aws_region": "eu-central-1", "storageOptions.fsync": "false",
            "record.keys": '["a", ["b", 2]]', "record.share": "0.25", "record.failed": "true",
            "record.bytes": "1 mb", "record.checkpoints": "7", "retention": "36 h",
        },
    )  # fmt: skip
    keys = ["a", ("b", 2)]
    assert query.record == Record(keys=keys, share=0.25, failed=True, bytes=1 << 20, checkpoints=7)
    assert 36 * 3600 == query.retention.total_seconds()
    assert ("s3://bucket/jobs", None) == (query.base_location, query.state_location)
    assert (Delivery.DIRECT, (3, 3), 12) == (query.delivery, query.tasks, query.max_parallelism)
    options = query.options
    assert options.stream.data_inline_threshold_bytes == 65536
    assert options.state == StateOptions("disk", "/mnt/ssd")
    assert (9, False) == (options.checkpoint.retained, options.checkpoint.compress_metadata)
    assert 5 == options.snapshot.max_log_handles
    assert {"aws_region": "eu-central-1", "fsync": "false"} == query.storage_options


def test_the_writer_counts_before_the_code_and_the_code_before_the_session() -> None:
    conf = {
        "tasks": "2",
        "retainedCheckpoints": "4",
        "delivery": "direct",
        "storageOptions.region": "a",
    }
    storage = {"region": "b", "endpoint": "x"}
    code: dict[str, Any] = {"tasks": 5, "retainedCheckpoints": 6, "storageOptions": storage}
    written = {"tasks": "7", "storageOptions.region": "c", "checkpoint": "41", "adopt": "true"}
    query = settled(conf, code, written)
    retained = query.options.checkpoint.retained
    assert ((7, 7), 6, Delivery.DIRECT) == (query.tasks, retained, query.delivery)
    assert {"region": "c", "endpoint": "x"} == query.storage_options
    assert (41, True) == (query.checkpoint, query.adopt)
    query = settled(conf, code)
    assert ((5, 5), 6) == (query.tasks, query.options.checkpoint.retained)


def test_a_record_of_the_code_counts_whole_and_the_writer_changes_its_fields() -> None:
    conf = {"record.keys": '["a"]', "record.bytes": "1 kb"}
    code = {"record": Record(share=0.5)}
    assert settled(conf, code).record == Record(share=0.5)
    written = {"record.share": "0", "record.failed": "true"}
    assert settled(conf, code, written).record == Record(failed=True)
    assert settled(conf, {}, {"record.keys": "[]"}).record == Record(bytes=1024)
    assert not settled(conf, {}, {"record.keys": "[]"}).record.is_on


def test_options_come_from_flinks_keys_and_the_environment_too() -> None:
    environ = {"STATELOG_CHECKPOINT_RETAINED": "8"}
    assert 8 == settled(environ=environ).options.checkpoint.retained
    query = settled({"execution.checkpointing.num-retained": "5"}, environ=environ)
    assert 5 == query.options.checkpoint.retained
    query = settled({"snapshot.max-log-handles": "9"}, {"snapshot.max-log-handles": 3})
    assert SnapshotPolicy(max_log_handles=3) == query.options.snapshot


WRONG_IN_THE_SESSION: list[tuple[dict[str, str], str]] = [
    ({"delivry": "direct"}, "spark.statelog.delivry.*did you mean 'delivery'"),
    ({"state-locatoin": "x"}, "did you mean 'stateLocation'"),
    ({"checkpoint.retaind": "2"}, "did you mean 'checkpoint.retained'"),
    ({"nonsense": "2"}, "spark.statelog.nonsense.*unknown"),
    ({"metrics": "x"}, "metrics is not a setting: pass it to transform_with_state as an"),
    ({"tasks": "many"}, "spark.statelog.tasks.*a count from 1"),
    ({"delivery": "twice"}, '"staged" or "direct", not .twice.'),
    ({"checkpoint": "3"}, "set it in the code, or as an option of the writer"),
    ({"operator": "x"}, "no effect there"),
    ({"stateLocation": "s3://a"}, "no effect there; spark.statelog.baseLocation is the folder"),
    ({"record": "failed"}, "record must be a statelog.spark.Record .*record.failed"),
    ({"record.shar": "1"}, "did you mean 'record.share'"),
    ({"record.share": "all"}, "spark.statelog.record.share.*must be 0 to 1"),
    ({"changelog.base-path": "x"}, "base-path has no effect in a query.*set stateLocation"),
    ({"tasks": "2", "TASKS": "3"}, "tasks is set twice"),
    ({"retainedCheckpoints": "2", "checkpoint.retained": "3"}, "checkpoint.retained.* twice"),
    ({"tasks": "3-2"}, "tasks must be a count from 1, or a range.*, not '3-2'"),
]
WRONG_IN_THE_CODE: list[tuple[dict[str, Any], str]] = [
    ({"baseLocation": "s3://a"}, "no effect there; .*set spark.statelog.baseLocation"),
    ({"record": ["a"]}, "record must be a statelog.spark.Record .*, not a list"),
    ({"tasks": 0}, 'tasks must be a count from 1, or a range such as "1-8" or "4-", not 0'),
    ({"tasks": "0-4"}, "tasks must be a count from 1.*, not '0-4'"),
    ({"tasks": "1-129"}, "tasks must be at most maxParallelism"),
    ({"tasks": "129-"}, "tasks must be at most maxParallelism"),
    ({"maxParallelism": 0}, "maxParallelism must be a whole number, at least 1, not 0"),
    (
        {"stream.data-inline-threshold": -1},
        "data-inline-threshold must be a number of bytes.*, at least 0, not -1",
    ),
    ({"delivery": 7}, "argument 'delivery'.*staged.* or .direct., not 7"),
    ({"checkpoint": -2}, '"latest", "empty" or a checkpoint id'),
    ({"checkpoint": "oldest"}, '"latest", "empty" or a checkpoint id'),
    ({"adopt": True, "checkpoint": "empty"}, "remove one of them"),
    (
        {"retainedCheckpoints": 0},
        "checkpoint.retained must be a whole number, at least 1 .*, not 0. A tag",
    ),
]
WRONG_IN_THE_WRITER: list[tuple[dict[str, Any], str]] = [
    ({"on-progress": print}, "writer's option.*on_progress is not a setting"),
    ({"baseLocation": "s3://a"}, "no effect there; .*set spark.statelog.baseLocation"),
    ({"maxParallelism": 4}, "pass it to transform_with_state"),
    ({"statelocation2": 4}, "statelog.statelocation2.*did you mean 'stateLocation'"),
]


@pytest.mark.parametrize(
    ("place", "settings", "message"),
    [
        *[("session", *wrong) for wrong in WRONG_IN_THE_SESSION],
        *[("code", *wrong) for wrong in WRONG_IN_THE_CODE],
        *[("writer", *wrong) for wrong in WRONG_IN_THE_WRITER],
    ],
)
def test_a_wrong_setting_is_named_with_its_place(
    place: str, settings: dict[str, Any], message: str
) -> None:
    places = {"session": {}, "code": {}, "writer": {}} | {place: settings}
    with pytest.raises(InvalidOptionsError, match=message):
        settled(*places.values())


def test_settings_that_contradict_are_named_with_both_places() -> None:
    message = r"tasks must be at most maxParallelism \(4\), not 5 \(tasks comes from argument 'tasks', maxP"
    with pytest.raises(InvalidOptionsError, match=message):
        settled({"maxParallelism": "4"}, {"tasks": 5})


def test_the_arguments_of_the_code_are_those_of_the_table() -> None:
    names = set(SETTINGS) - {"baseLocation"}
    assert names == set(OperatorSettings.__annotations__)
    assert len(SETTINGS) <= 20
    assert OperatorSettings.__doc__ is not None
    assert all(f"        {name}: (" in OperatorSettings.__doc__ for name in names)
    for function in (transform_with_state, transform_with_state_in_pandas, aggregate):
        text = " ".join((function.__doc__ or "").split())
        assert f"ee `OperatorSettings`: {', '.join(OperatorSettings.__annotations__)}." in text
    undeclared = {field.name for field in fields(QuerySettings) if not field.metadata}
    assert {"options"} == undeclared


EFFECTIVE = {
    "changelog.compression.enabled": True, "changelog.preemptive-persist-threshold": 5_000,
    "changelog.batch.persist-delay": "7 ms", "changelog.batch.persist-size-threshold": 6_000,
    "changelog.upload.num-threads": 9, "changelog.discard.num-threads": 2,
    "changelog.upload.max-in-flight": 7_000, "changelog.upload.retry-policy": "exponential",
    "changelog.upload.timeout": "3 s", "changelog.upload.max-attempts": 8,
    "changelog.upload.next-attempt-delay": "4 ms", "changelog.batch.fixed-delay": True,
    "changelog.backpressure-timeout": "1 min",
}  # fmt: skip
READ_IN_A_QUERY = ("checkpoint", "snapshot", "state")


def test_the_options_of_the_changelog_take_effect_in_a_query() -> None:
    expected = ChangelogOptions.from_mapping(EFFECTIVE)
    assert expected == settled({}, EFFECTIVE).options.changelog
    text = {key: str(value) for key, value in EFFECTIVE.items()}
    assert expected == settled(text).options.changelog
    flink = {
        f"state.changelog.dstl.dfs.{key.removeprefix('changelog.')}": value
        for key, value in EFFECTIVE.items()
        if key not in ("changelog.batch.fixed-delay", "changelog.backpressure-timeout")
    }
    ours = {key: EFFECTIVE[key] for key in list(EFFECTIVE)[-2:]}
    assert expected == settled({}, flink | ours).options.changelog


def test_an_option_takes_effect_in_a_query_or_is_rejected_by_name() -> None:
    """Every key of every section, and every key of Flink's."""
    keys = {key: spec for spec in OPTIONS for key in (spec.key, *spec.other_keys)}
    sections = {spec.key for spec in OPTIONS if spec.section in READ_IN_A_QUERY}
    sections.add("stream.data-inline-threshold")
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


def test_tasks_have_their_own_defaults_within_the_budget() -> None:
    options = settled({"memoryBudget": "256 mb"}).options.changelog
    assert (16 << 20, 4 << 20, 4 << 20) == (
        options.upload_max_in_flight_bytes,
        options.preemptive_persist_threshold_bytes,
        options.batch_persist_size_threshold_bytes,
    )
    assert settled().options == QuerySettings().options == task_options()
    assert settled().options.stream.data_inline_threshold_bytes == 1 << 20
    assert options.upload_timeout.total_seconds() == 30
    written = settled({"memoryBudget": "256 mb"}, {}, {"changelog.upload.max-in-flight": "1 gb"})
    assert written.options.changelog.upload_max_in_flight_bytes == 1 << 30


def test_a_variable_without_effect_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    environ = {
        "STATELOG_LOCAL_RECOVERY_BACKUP": "false",
        "STATELOG_CHANGELOG_UPLOAD_MAX_ATTEMPTS": "9",
    }
    query = resolve_settings({}, {}, environ=environ)
    assert query.options.changelog.upload_max_attempts == 9
    assert "STATELOG_LOCAL_RECOVERY_BACKUP has no effect in a query" in caplog.text
    assert "MAX_ATTEMPTS" not in caplog.text


def test_state_is_stored_next_to_the_query_or_under_its_name() -> None:
    assert "ckpt/statelog" == settled().location("ckpt/", None)
    assert "mine" == settled({"baseLocation": "base"}, {"stateLocation": "mine"}).location("c", "q")
    for word in (
        settled({"baseLocation": "checkpoint"}),
        settled({"baseLocation": "base"}, {"stateLocation": "checkpoint"}),
        settled({"baseLocation": "base"}, {}, {"stateLocation": "checkpoint"}),
    ):
        assert "ckpt/statelog" == word.location("ckpt/", None)
    base = settled({"baseLocation": "s3://bucket/jobs/"})
    assert "s3://bucket/jobs/totals" == base.location("c", "totals")
    for name in (None, "", "a/b", ".."):
        with pytest.raises(UsageError, match="queryName"):
            base.location("c", name)
    with_location = settled({"baseLocation": "b"}, {}, {"stateLocation": "own"})
    assert "own" == with_location.location("c", None)


def test_tasks_are_bounded_by_the_cores_by_default() -> None:
    assert TaskBounds(1, 4) == QuerySettings().task_bounds(4)
    assert TaskBounds(1, 3) == QuerySettings(max_parallelism=3).task_bounds(4)
    ranges = {"6-": (6, 6), "2-": (2, 4), " 2 - 9 ": (2, 9), "5-5": (5, 5), 5: (5, 5)}
    for tasks, bounds in ranges.items():
        assert TaskBounds(*bounds) == settled({}, {"tasks": tasks}).task_bounds(4)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("keys", (5, {"a": 1}, "everything")),
        ("share", (1.5, -0.1, True, float("nan"))),
        ("failed", ("yes",)),
        ("bytes", (0,)),
        ("checkpoints", (0,)),
    ],
)
def test_a_wrong_record_is_refused_without_its_keys(name: str, values: Any) -> None:
    for value in values:
        with pytest.raises(InvalidOptionsError, match=f"{name} must be") as raised:
            Record(**{name: value})
        assert "everything" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("delivry", r"; did you mean 'delivery'\?$"), ("zzz", "; its arguments are Spark's")],
)
def test_an_unknown_argument_is_refused_with_the_nearest_name(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"not have the argument {name}{hint}"):
        refuse_unknown_arguments({name: 1, "tasks": 2, "retainedCheckpoints": 3})


def test_an_option_may_be_given_in_the_code_by_its_key() -> None:
    arguments = {"snapshot.max-log-handles": 3, "state.local-directory": "/mnt"}
    refuse_unknown_arguments(arguments)
    assert settled({}, arguments).options.state.local_directory == "/mnt"
    with pytest.raises(InvalidOptionsError, match=r"did you mean 'snapshot\.max-log-handles'"):
        settled({}, {"snapshot.max-log-handle": 3})


def test_observers_of_two_calls_are_joined_unless_they_differ() -> None:
    metrics, seen = Metrics(), list[BatchProgress]()
    first = Observers(seen.append)
    assert Observers(seen.append, metrics) == Observers(metrics=metrics).after(first)
    assert first == first.after(NO_OBSERVERS) == NO_OBSERVERS.after(first) == first.after(first)
    with pytest.raises(UsageError, match="on_progress differs from the value of"):
        Observers(print).after(first)
    with pytest.raises(UsageError, match="metrics differs from"):
        Observers(metrics=metrics).after(Observers(metrics=Metrics()))
