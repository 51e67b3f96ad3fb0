"""Text from storage does not act on a terminal, a log or a metric."""

import json
import logging
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.forgeries.recordings import NAMES

from statelog.errors import CorruptionError
from statelog.logs import LOGGERS, escape_records
from statelog.plain_text import one_line, plain_json, plain_text

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
