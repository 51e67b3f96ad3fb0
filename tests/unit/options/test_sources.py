"""Options: Flink's defaults and keys, the places they come from, and refusals that help."""

import datetime as dt

import pytest

from statelog import changelog as cl
from statelog.errors import InvalidOptionsError
from statelog.options import SnapshotPolicy, load_options
from statelog.options.sections import FOREIGN, OPTIONS, Options, find_option, variable_of

ATTEMPTS = "changelog.upload.max-attempts"


def load(settings: dict[str, object] | None = None, **places: object) -> Options:
    return load_options(settings, **{"environ": {}, **places})


def test_without_settings_all_are_defaults():
    assert Options() == load()


def test_the_first_place_with_a_value_counts():
    yaml = "changelog: {upload: {max-attempts: 2}}"
    environ = {"STATELOG_CHANGELOG_UPLOAD_MAX_ATTEMPTS": "3", "PATH": "/bin"}
    spark = [("spark.statelog.changelog.upload.max-attempts", "4"), ("spark.app.name", "x")]
    loaded = [
        load(yaml_text=yaml),
        load(yaml_text=yaml, environ=environ),
        load(yaml_text=yaml, environ=environ, spark_conf=spark),
        load({ATTEMPTS: 5}, yaml_text=yaml, environ=environ, spark_conf=dict(spark)),
    ]
    assert [2, 3, 4, 5] == [options.changelog.upload_max_attempts for options in loaded]


def test_the_environment_is_that_of_this_process(monkeypatch):
    monkeypatch.setenv("STATELOG_CHECKPOINT_RETAINED", "9")
    assert 9 == load_options().checkpoint.retained
    assert 3 == load().checkpoint.retained


@pytest.mark.parametrize("spec", OPTIONS, ids=lambda spec: spec.key)
def test_each_option_has_a_field_and_all_its_keys_lead_to_it(spec):
    section = getattr(Options(), spec.section.replace("-", "_"))
    assert spec.default in (None, getattr(section, spec.field))
    for key in (spec.key, *spec.other_keys):
        assert spec is find_option(key)


def test_each_field_has_an_option():
    table = {(spec.section.replace("-", "_"), spec.field) for spec in OPTIONS}
    options = Options()
    fields = {
        (section, field)
        for section in Options.__dataclass_fields__
        for field in getattr(options, section).__dataclass_fields__
    }
    assert fields == table
    assert len(OPTIONS) == len({spec.key for spec in OPTIONS})
    assert len(OPTIONS) == len({variable_of(spec.key) for spec in OPTIONS})


def test_a_yaml_file_may_be_nested_or_flat(tmp_path):
    file = tmp_path / "statelog.yaml"
    nested = (
        "statelog:\n  changelog:\n    batch.persist-delay: 20 ms\n  snapshot:\n"
        "    max-log-handles: 9\n    log-to-snapshot-ratio: 1.5\n"
    )
    flat = (
        "state.changelog.dstl.dfs.batch.persist-delay: 20 ms\nsnapshot.max-log-handles: 9\n"
        "statelog.snapshot.log-to-snapshot-ratio: '1.5'\n"
    )
    for text in (nested, flat):
        file.write_text(text)
        options = load(yaml_file=file)
        assert dt.timedelta(milliseconds=20) == options.changelog.batch_persist_delay
        assert SnapshotPolicy(1.5, 16 << 20, 9) == options.snapshot
    assert Options() == load(yaml_text="")


def test_an_error_says_where_the_value_came_from(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text("changelog:\n  upload:\n    timeout: soon\n")
    cases = {
        r"s\.yaml, key 'changelog.upload.timeout'": {"yaml_file": file},
        "environment variable STATELOG_CHANGELOG_UPLOAD_TIMEOUT": {
            "environ": {"STATELOG_CHANGELOG_UPLOAD_TIMEOUT": "soon"}
        },
        "Spark's configuration 'spark.statelog.changelog.upload.timeout'": {
            "spark_conf": {"spark.statelog.changelog.upload.timeout": "soon"}
        },
        "'dstl.dfs.upload.timeout' in the code": {"settings": {"dstl.dfs.upload.timeout": "soon"}},
    }
    for origin, places in cases.items():
        with pytest.raises(InvalidOptionsError, match=f"{origin}.*must be a duration"):
            load(**places)


def test_a_contradiction_names_both_places():
    with pytest.raises(InvalidOptionsError) as caught:
        load(
            {"changelog.upload.max-in-flight": "1 mb"},
            environ={"STATELOG_CHANGELOG_BATCH_PERSIST_SIZE_THRESHOLD": "2 mb"},
        )
    assert "environment variable STATELOG_CHANGELOG_BATCH_PERSIST_SIZE_THRESHOLD" in str(
        caught.value
    )
    assert "in the code" in str(caught.value)
    with pytest.raises(InvalidOptionsError, match=r"upload\.max-in-flight comes from the default"):
        load({"changelog.batch.persist-size-threshold": "1 gb"})


def test_a_slip_is_answered_with_the_nearest_key():
    for places, near in (
        ({"settings": {"changelog.upload.max-atempts": 1}}, ATTEMPTS),
        ({"spark_conf": {"spark.statelog.checkpoint.retaind": "1"}}, "checkpoint.retained"),
        ({"yaml_text": "changelog.upload.time-out: 1 s"}, "changelog.upload.timeout"),
        (
            {"environ": {"STATELOG_CHANGLOG_UPLOAD_TIMEOUT": "1 s"}},
            "STATELOG_CHANGELOG_UPLOAD_TIMEOUT",
        ),
    ):
        with pytest.raises(InvalidOptionsError, match=f"did you mean '?{near}"):
            load(**places)


def test_a_variable_that_is_no_option_is_ignored():
    others = {"STATELOG_FAIL_POINTS": "a", "STATELOG_X": "", "STATELOG_TEST_KEYS": "a:b"}
    assert Options() == load(environ=others)
    with pytest.raises(InvalidOptionsError, match=r"docs/reference/options\.md"):
        load(environ={"STATELOG_STREAM_Q": "1"})


@pytest.mark.parametrize(
    "places",
    [
        {"settings": {ATTEMPTS: 1, "dstl.dfs.upload.max-attempts": 1}},
        {"settings": {"changelog.backpressure-timeout": "9999999999 days"}},
        {"settings": {"snapshot.log-to-snapshot-ratio": 0}},
        {"settings": {"snapshot.log-to-snapshot-ratio": "nan"}},
        {"settings": {"snapshot.max-log-handles": "5 kb"}},
        {"settings": {"checkpoint.retained": True}},
        {"settings": {"checkpoint.retained": 0}},
        {"settings": {"local-recovery.recovery": True}},
        {"settings": {"local-recovery.directories": 5}},
        {"yaml_text": "- a\n- b\n"},
        {"yaml_text": "a: [b"},
        {"yaml_text": "", "yaml_file": "x"},
        {"yaml_file": "/nowhere/at/all.yaml"},
    ],
    ids=str,
)
def test_nonsense_is_refused(places):
    with pytest.raises(InvalidOptionsError):
        load(**places)


def test_flinks_options_without_effect_are_refused():
    for foreign in FOREIGN:
        assert all(foreign is find_option(key) for key in foreign.keys)
    for key, value, reason in (
        ("state.changelog.enabled", "false", "is the changelog"),
        ("state.changelog.storage", "memory", "memory://"),
        ("execution.checkpointing.max-concurrent-checkpoints", 2, "one after another"),
        ("state.changelog.periodic-materialize.enabled", False, "bounds"),
    ):
        with pytest.raises(InvalidOptionsError, match=reason):
            load({key: value})
    with pytest.raises(InvalidOptionsError, match="whole number"):
        cl.ChangelogOptions.from_mapping({"state.changelog.max-failures-allowed": "many"})


def test_a_file_of_text_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "s.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidOptionsError, match="cannot be read"):
        load(yaml_file=tmp_path / "s.yaml")


FLINK = "state.changelog.dstl.dfs."


def test_the_defaults_are_flinks():
    assert cl.ChangelogOptions() == cl.ChangelogOptions(
        compression_enabled=False,
        preemptive_persist_threshold_bytes=5 << 20,
        batch_persist_delay=dt.timedelta(milliseconds=10),
        batch_persist_size_threshold_bytes=10 << 20,
        upload_num_threads=5,
        discard_num_threads=1,
        upload_max_in_flight_bytes=100 << 20,
        upload_retry_policy="fixed",
        upload_max_attempts=3,
        upload_timeout=dt.timedelta(seconds=1),
        upload_next_attempt_delay=dt.timedelta(milliseconds=500),
        download_local_cache_idle_timeout=dt.timedelta(minutes=10),
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
        *({"batch.persist-delay": "soon"}, {"batch.persist-delay": "P"}),
        *({"compression.enabled": "maybe"}, {"upload.retry-policy": "often"}),
        *({"upload.num-threads": 0}, {"upload.timeout": dt.timedelta(seconds=-1)}),
        *({"upload.max-in-flight": "5 apples"}, {"batch.persist-size-threshold": "101 mb"}),
        *({"base-path": 5}, {"dstl.dfs.base-path": "a", FLINK + "base-path": "b"}),
        {"preemptive-persist-threshold": -1},
        {"upload.max-in-flight": 0, "batch.persist-size-threshold": 0},
    ],
    ids=lambda settings: " ".join(f"{key}={value}" for key, value in settings.items()),
)
def test_nonsense_in_a_section_is_refused(settings):
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
