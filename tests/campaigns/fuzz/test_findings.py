"""What campaigns found, as small cases."""

from __future__ import annotations

import base64
import re
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.campaigns.fuzz.samples import SCHEMA
from tests.support.locations.histories import History
from tests.support.processes.script import run_script
from tests.support.stores.dict_store import DictStore

from statelog.errors import CorruptionError
from statelog.extensions.recordings.format import from_stream
from statelog.format.arrow_data import to_stream
from statelog.model import ChangelogStateBackendHandle, KeyGroupRange
from statelog.state.cache import logs_ahead
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import read_snapshot, snapshot_row_count, write_snapshot
from statelog.state.schema import OperatorStateSchema

GROUPS = KeyGroupRange(0, 3)


def snapshot() -> bytes:
    return write_snapshot(OperatorCodec(SCHEMA), {}, {}, GROUPS, now_ms=-1)


@pytest.mark.parametrize("since", [0, 3])
def test_a_schema_that_repeats_a_variable_is_refused(since: int):
    """The record of 2 KB had one two thousand times, and reading all of them took minutes."""
    stored = History("fuzz 3", DictStore(), retained=3).model.schema.to_json()
    again = {**stored["states"][0], "since": since}
    with pytest.raises(CorruptionError, match="contains two variables"):
        OperatorStateSchema.from_json({**stored, "states": [*stored["states"], *[again] * 2000]})


def test_a_variable_may_have_the_name_of_a_dropped_one():
    stored = History("fuzz 3", DictStore(), retained=3).model.schema.to_json()
    dropped = {**stored["states"][0], "dropped": True}
    added = {**stored["states"][0], "since": 1}
    schema = OperatorStateSchema.from_json({**stored, "states": [dropped, added]})
    assert 1 == schema.state_id(added["name"])


def with_forged_type() -> bytes:
    """Return a snapshot in whose metadata the key group is a boolean, and an integer in its schema."""
    # In Parquet's compact protocol: field 1 (the type), a list of encodings, field 3 (the path).
    typed = re.compile(rb"\x15\x02(\x19.{1,8}\x19\x18\tkey_group)", re.DOTALL)
    data, count = typed.subn(lambda match: b"\x15\x00" + match[1], filled())
    assert count
    return data


def filled() -> bytes:
    history = History("fuzz 3", DictStore(), retained=3)
    history.run(9)
    return next(
        data
        for path, (data, _) in sorted(history.store.objects.items())
        if path.startswith("taskowned/")
    )


CHILD = """
from tests.campaigns.fuzz.test_findings import GROUPS, SCHEMA, with_forged_type
from statelog.errors import CorruptionError
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import read_snapshot, snapshot_row_count
for read in (lambda data: read_snapshot(OperatorCodec(SCHEMA), data, GROUPS),
             lambda data: snapshot_row_count(data, GROUPS)):
    try:
        read(with_forged_type())
    except CorruptionError as error:
        print("refused:", error)
"""


def test_a_column_of_a_forged_type_is_refused() -> None:
    assert 2 == run_script(CHILD).count("refused:")


def test_a_column_whose_name_is_no_text_is_refused() -> None:
    data = snapshot().replace(b"key_group", b"key\xffgroup")
    for read in (
        snapshot_row_count,
        lambda data, groups: read_snapshot(OperatorCodec(SCHEMA), data, groups),
    ):
        with pytest.raises(CorruptionError, match="cannot be read"):
            read(data, GROUPS)


def test_a_schema_with_integers_of_another_width_is_refused() -> None:
    stored = OperatorStateSchema("o", pa.schema([("k", pa.int64())]), ()).to_json()
    arrow = base64.b64decode(stored["key"]["arrow"])
    refused = 0
    for at in range(len(arrow)):
        if arrow[at] != 64:
            continue
        forged = base64.b64encode(arrow[:at] + b"\x80" + arrow[at + 1 :]).decode()
        try:
            OperatorStateSchema.from_json({**stored, "key": {"text": "", "arrow": forged}})
        except CorruptionError:
            refused += 1
    assert refused


def test_log_handles_out_of_order_are_damage() -> None:
    history = History("fuzz 3", DictStore(), retained=3)
    history.run(9)
    base = history.coordinator.latest
    assert base is not None
    groups = KeyGroupRange(0, 5)
    handle: ChangelogStateBackendHandle = base.for_range(groups)
    ids = [log.checkpoint_id for log in handle.log]
    assert ids[0] < ids[-1]
    with pytest.raises(CorruptionError, match="follows the log of"):
        list(logs_ahead(replace(handle, log=handle.log[::-1]), groups, lambda group: -1))


def test_stored_tables_and_schemas_whose_names_are_no_text_are_refused() -> None:
    table = pa.table({"name": pa.array([{"inner": 1}])})
    for name in (b"name", b"inner"):
        data = to_stream(table).replace(name, b"\xff" * len(name))
        with pytest.raises(CorruptionError, match="the name of a column is not UTF-8"):
            from_stream(data)
        stored = OperatorStateSchema("o", table.schema, ()).to_json()
        arrow = base64.b64decode(stored["key"]["arrow"]).replace(name, b"\xff" * len(name))
        forged = {"text": "", "arrow": base64.b64encode(arrow).decode()}
        with pytest.raises(CorruptionError, match="not a state schema"):
            OperatorStateSchema.from_json({**stored, "key": forged})
