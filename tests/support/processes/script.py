"""Runs a script in a Python process of its own."""

import subprocess
import sys
from collections.abc import Mapping


def run_script(
    code: str,
    *arguments: str,
    timeout_s: float = 100,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a script, check that it ends with status 0, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
