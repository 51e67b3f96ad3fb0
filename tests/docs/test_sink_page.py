"""The sink of the page for contributors passes the contract, as the page runs it."""

import subprocess
import sys
from pathlib import Path

from tests.house.sources import ROOT
from tests.support.project.snippets import blocks

PAGE = ROOT / "docs" / "contributing" / "extend.md"


def test_the_sink_of_the_page_passes_the_contract(tmp_path: Path) -> None:
    code = [block.text for block in blocks(PAGE) if block.runs]
    assert 2 == len(code)
    (tmp_path / "test_my_sink.py").write_text("\n".join(code), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_sink.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    assert " passed" in done.stdout
