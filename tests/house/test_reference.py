"""The generated pages and the chart are those in the repository."""

import subprocess
import sys

import pytest
from tests.house.sources import ROOT


@pytest.mark.parametrize("script", ["reference.py", "chart.py", "evidence.py", "pictures.py"])
def test_what_is_generated_is_up_to_date(script: str) -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "tools" / script), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (run.returncode, run.stderr)
