"""What notebooks show is escaped, and shows what is there."""

from pathlib import Path

from tests.support.locations.histories import History

import statelog
from statelog.plain_text import facts_as_html
from statelog.spark.query.progress import BatchProgress
from statelog.store import open_store


def test_texts_are_escaped_and_what_is_empty_is_left_out() -> None:
    found = facts_as_html("<b>", {"a & b": "\x1b[31m<i>", "none": None, "empty": "", "zero": 0})
    assert "&lt;b&gt;" in found and "a &amp; b" in found and "\\x1b[31m&lt;i&gt;" in found
    assert "none" not in found and "empty" not in found and ">0<" in found


def test_a_location_and_its_checkpoints_show_their_facts(tmp_path: Path) -> None:
    History("notebook", open_store(str(tmp_path), storage_options={"fsync": False})).run(3)
    with statelog.open(str(tmp_path)) as state:
        assert "variables" not in state._repr_html_(), "nothing was read yet"
        newest = state.checkpoints()[-1]
        assert repr(newest).startswith(
            f"<checkpoint {newest.checkpoint_id}: retained, micro-batch "
        )
        assert f"checkpoint {newest.checkpoint_id}" in newest._repr_html_()
        state.variables()
        assert f"checkpoint {newest.checkpoint_id}" in state._repr_html_()
        with state.follow() as replica:
            assert f">{newest.checkpoint_id}<" in replica._repr_html_()


def test_a_micro_batch_shows_where_its_time_went() -> None:
    shown = BatchProgress(
        batch_id=7,
        checkpoint_id=15,
        rows=120,
        keys=30,
        milliseconds={"run": 81.6},
        task_milliseconds={"process": 40.2},
        largest_keys=[{"key": "<c1>", "key_group": 3, "rows": 90, "share": 0.75}],
    )._repr_html_()
    assert "micro-batch 7" in shown and ">15<" in shown and "&lt;c1&gt; (90)" in shown
    assert "run (driver)" in shown and "82 ms" in shown and "process (slowest task)" in shown
