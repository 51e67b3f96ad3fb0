"""The options of `spark.read.format("statelog")`."""

import pytest

from statelog.errors import InvalidOptionsError
from statelog.extensions.spark_source import SourceOptions
from statelog.model import KeyGroupRange


def test_the_names_are_taken_in_any_case() -> None:
    assert 3 == SourceOptions.parse({"path": "/state", "batchId": "3"}).batchId
    options = SourceOptions.parse(
        {
            "PATH": "/state", "VARIABLE": "total", "CHECKPOINT": "7", "Operator": "op",
            "keygroups": " 0 - 15 ", "partitions": "3", "filterpushdown": "TRUE",
            "storageoptions.region": "eu", "flattenCollectionTypes": "false",
        },
    )  # fmt: skip
    assert options == SourceOptions(
        path="/state", variable="total", checkpoint="7", operator="op",
        keyGroups=KeyGroupRange(0, 15), partitions=3, filterPushdown=True,
        flattenCollectionTypes=False, store={"region": "eu"},
    )  # fmt: skip


def test_the_default_is_the_newest_state_of_all_key_groups() -> None:
    options = SourceOptions.parse({"path": "/state"})
    assert options == SourceOptions.parse(
        {"path": "/state", "view": "State", "checkpoint": "Latest", "filterPushdown": "false"}
    )
    assert (options.view, options.checkpoint, options.keyGroups) == ("state", None, None)
    assert SourceOptions.parse({"path": "/s", "keyGroups": "3"}).keyGroups == KeyGroupRange(3, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "/s", "stat": "x", "a": "y"},
         "unknown option 'stat'; the options are path, view, variable"),
        ({"path": "/s", "variable": "x", "VARIABLE": "y"}, "variable is set twice"),
        ({"path": "/s", "batchId": "1.5"}, "batchId must be a whole number, not '1.5'"),
        ({"path": "/s", "batchId": "1", "checkpoint": "2"},
         "batchId and checkpoint both select a checkpoint"),
        ({}, r"needs a state location: spark.read.format\(\"statelog\"\).load"),
        ({"path": ""}, "needs a state location"),
        ({"path": "/s", "view": "keys"},
         'view must be "state", "changes" or "checkpoints", not .keys.'),
        ({"path": "/s", "checkpoint": "the newest"},
         "a number, latest, earliest, a tag, or an ISO 8601 time .* not 'the newest'"),
        ({"path": "/s", "checkpoint": "-1"}, "or an ISO 8601 time .* not '-1'"),
        ({"path": "/s", "keyGroups": "5-3"}, "or a range such as 0-15, not '5-3'"),
        ({"path": "/s", "keyGroups": "1,2"}, "or a range such as 0-15, not '1,2'"),
        ({"path": "/s", "partitions": "0"},
         "partitions must be a whole number, at least 1, not '0'"),
        ({"path": "/s", "filterPushdown": "on"}, "true or false, not 'on'"),
        ({"path": "/s", "view": "checkpoints", "keyGroups": "1", "variable": "x"},
         "the view checkpoints does not accept variable, keyGroups; it accepts only the path"),
        ({"path": "/s", "since": "1", "reader": "x"},
         "the view state does not accept since, reader; it accepts variable"),
        ({"path": "/s", "columns": "a,,b"}, "columns must be names separated by commas"),
        ({"path": "/s", "flattenCollectionTypes": "1"},
         "flattenCollectionTypes must be true or false"),
        ({"path": "/s", "view": "changes", "reader": "a b"}, "reader: 'a b' is not a valid tag name"),
        ({"path": "/s", "view": "changes", "readerMaxCheckpoints": "9"},
         "readerMaxCheckpoints requires the option reader"),
        ({"path": "/s", "view": "changes", "maxCheckpointsPerTrigger": "0"},
         "maxCheckpointsPerTrigger must be a whole number, at least 1, not '0'"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_by_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOptionsError, match=message):
        SourceOptions.parse(options)


def test_no_message_and_no_text_shows_a_secret() -> None:
    secret = "hush-hush"
    with pytest.raises(InvalidOptionsError) as raised:
        SourceOptions.parse({"path": "s3://bucket", "secret_access_key": secret})
    assert secret not in str(raised.value)
    options = SourceOptions.parse(
        {"path": "s3://bucket", "storageOptions.secret_access_key": secret}
    )
    assert secret not in repr(options)
    assert options.store == {"secret_access_key": secret}


def test_a_checkpoint_is_a_number_a_word_a_tag_or_a_time() -> None:
    times = ("2026-11-22T10:30:00Z", "2026-11-22 10:30", "2026-11-22", "2026-11-22T10:30+01:00")
    names = {" 7 ": "7", "EARLIEST": "earliest"}
    names |= {name: name for name in ("7", "before-upgrade", "v1.2_b", *times)}
    for text, checkpoint in names.items():
        assert SourceOptions.parse({"path": "/s", "checkpoint": text}).checkpoint == checkpoint
    begin = SourceOptions.parse({"path": "/s", "view": "changes", "since": "latest"})
    assert (begin.since, begin.checkpoint) == ("latest", None)
