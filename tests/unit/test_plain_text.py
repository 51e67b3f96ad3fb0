"""Text from storage does not act on a terminal, a log, a metric or a notebook."""

import json
import logging
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.forgeries.recordings import NAMES
from tests.support.locations.histories import History

import statelog
from statelog.errors import CorruptionError
from statelog.logs import LOGGERS, escape_records
from statelog.plain_text import facts_as_html, one_line, plain_json, plain_text
from statelog.spark.query.progress import BatchProgress
from statelog.store import open_store

texts = st.lists(st.one_of(st.sampled_from(NAMES), st.text())).map("".join)


@given(texts)
def test_no_character_is_left_that_acts(text: str) -> None:
    assert one_line(text).isprintable()
    assert all(one.isprintable() or one in "\n\t" for one in plain_text(text))
    assert one_line(text) == one_line(one_line(text)), "twice is the same"
    assert text.count("\n") == plain_text(text).count("\n")


@given(texts.filter(lambda text: "\udc9b" not in text))
def test_escaped_json_is_the_same_value(text: str) -> None:
    written = json.dumps({text: [text]}, ensure_ascii=False)
    assert {text: [text]} == json.loads(plain_json(written))
    assert plain_json(written).isprintable()


def test_what_is_printable_stays() -> None:
    text = "Größe 東京 😀 `a` \\x1b"
    assert text == one_line(text) == plain_text(text) == plain_json(text)
    assert "\\x1b[2J" == one_line("\x1b[2J")


@pytest.mark.parametrize("name", NAMES)
def test_an_error_is_plain_and_keeps_the_name_as_a_fact(name: str) -> None:
    error = CorruptionError(f"the object {name} is damaged", path=name)
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert plain_text(str(one)) == str(one)
        assert name == one.path


@pytest.mark.parametrize("logger", LOGGERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_log_record_is_one_line(logger: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    escape_records()  # again: further calls change nothing
    with caplog.at_level(logging.INFO, logger):
        logging.getLogger(logger).info(
            "%s: %d of %.300s is %r", name, 3, CorruptionError(f"{name} is damaged"), name
        )
        logging.getLogger(logger).info("no arguments")
        logging.getLogger(logger).info("%(name)s", {"name": 1})
    first = caplog.records[0].getMessage()
    assert first.isprintable()
    assert ": 3 of " in first
    assert ["no arguments", "1"] == [record.getMessage() for record in caplog.records[1:]]


def test_texts_are_escaped_and_what_is_empty_is_left_out() -> None:
    found = facts_as_html("<b>", {"a & b": "\x1b[31m<i>", "none": None, "empty": "", "zero": 0})
    assert "&lt;b&gt;" in found and "a &amp; b" in found and "\\x1b[31m&lt;i&gt;" in found
    assert "none" not in found and "empty" not in found and ">0<" in found


def test_a_location_and_its_checkpoints_show_their_facts(tmp_path: Path) -> None:
    History("notebook", open_store(str(tmp_path), storage_options={"fsync": False})).run(3)
    with statelog.open(str(tmp_path)) as state:
        assert "variables" not in state._repr_html_(), "nothing was read yet"
        newest = state.checkpoints()[-1]
        name = f"checkpoint {newest.checkpoint_id}"
        assert repr(newest).startswith(f"<{name}: retained, micro-batch ")
        assert name in newest._repr_html_()
        state.variables()
        assert name in state._repr_html_()
        with state.follow() as replica:
            assert f">{newest.checkpoint_id}<" in replica._repr_html_()


def test_a_micro_batch_shows_where_its_time_went() -> None:
    progress = BatchProgress(
        batch_id=7, checkpoint_id=15, rows=120, keys=30, milliseconds={"run": 81.6},
        task_milliseconds={"process": 40.2},
        largest_keys=[{"key": "<c1>", "key_group": 3, "rows": 90, "share": 0.75}],
    )  # fmt: skip
    shown = progress._repr_html_()
    assert "micro-batch 7" in shown and ">15<" in shown and "&lt;c1&gt; (90)" in shown
    assert "run (driver)" in shown and "82 ms" in shown and "process (slowest task)" in shown
