"""
Write the benchmark pages and all their figures from the measured results in bench/results.

`python tools/chart.py` writes them; with `--check` it only reports whether they are up to date.
`make bench` does the same after it has measured.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.harness import page  # noqa: E402


def main(arguments: list[str]) -> int:
    """Write the pages and figures, or compare them; returns 1 if some are out of date."""
    results = ROOT / "bench" / "results"
    if "--check" not in arguments:
        page.write(results)
        return 0
    old = [path.relative_to(ROOT).as_posix() for path in page.out_of_date(results)]
    if old:
        sys.stderr.write(f"out of date: {', '.join(old)}; run python tools/chart.py\n")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
