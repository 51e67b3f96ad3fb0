"""
Write constraints.txt: the one set of versions that the tests run on.

Installs statelog with every extra into a throw-away environment, free of the present constraints,
and writes down what came of it. Run it with `make constraints`, then run the tests.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "spark,connect,cli,metrics,otel,java,encryption,fsspec,sql,sketches,iceberg,kafka,docs,dev"
HEADER = """\
# The versions that statelog is developed and tested with, everything its extras pull in included.
# Made by `make constraints`; used as `pip install -c constraints.txt`. Ranges: pyproject.toml.
"""
PINNED = re.compile(r"[A-Za-z0-9][\w.-]*==[\w.!+]+")


def main() -> int:
    """Resolve, freeze, write."""
    with tempfile.TemporaryDirectory() as scratch:
        python = Path(scratch) / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", scratch], check=True)
        pip = [str(python), "-m", "pip", "-qq", "--no-input", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", f"{ROOT}[{EXTRAS}]"], check=True)
        frozen = subprocess.run(
            [*pip, "freeze", "--exclude", "statelog"], check=True, capture_output=True, text=True
        ).stdout.splitlines()
    odd = [line for line in frozen if not PINNED.fullmatch(line)]
    if odd:
        sys.stderr.write(f"not of the form name==version: {odd}\n")
        return 1
    lines = sorted(frozen, key=str.lower)
    (ROOT / "constraints.txt").write_text(HEADER + "".join(f"{line}\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
