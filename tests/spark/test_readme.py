"""The examples in the README run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from statelog.spark.rows.spark_versions import SPARK

README = Path(__file__).parents[2] / "README.md"


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_stream_runs_and_commits(spark, tmp_path, capsys):
    from statelog.cli.main import run
    from statelog.spark import disable

    (code,) = [block for block in python_blocks() if "enable(spark)" in block]
    code = code.replace("/tmp/statelog-readme", str(tmp_path / "job"))
    if SPARK < (4, 0):  # as docs/reference/spark-versions.md says
        code = code.replace("from pyspark.sql.streaming import", "from statelog.spark import")
    scope: dict[str, object] = {}
    code, end, _ = code.partition("query.awaitTermination(60)\nquery.stop()\n")
    assert end, "the example ends by waiting and stopping"
    try:
        exec(code, scope)
        query = scope["query"]
        deadline = 60
        while deadline and not (tmp_path / "job/statelog/chk-2/_metadata").exists():
            query.awaitTermination(1)
            deadline -= 1
    finally:
        disable(spark)
        for running in spark.streams.active:
            running.stop()
    assert 0 == run(["read", str(tmp_path / "job/statelog"), "total"])
    assert "value.amount" in capsys.readouterr().out
    assert 0 == run(["checkpoints", str(tmp_path / "job/statelog")])
    assert "retained" in capsys.readouterr().out


def test_the_changelog_alone_gives_back_what_was_appended(tmp_path, capsys):
    (code,) = [block for block in python_blocks() if "FsStateChangelogStorage" in block]
    exec(code.replace("/tmp/changelog", str(tmp_path / "changelog")), {})
    assert "[StateChange(key_group=5, value=b'a change')]" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_two_commands_are_targets_of_the_makefile(target):
    assert f"make {target}" in README.read_text(encoding="utf-8")
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)
