"""Run all benchmarks, one after another, and write the results as JSON to bench/results."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BENCHES = {
    "changelog": "changelog.py",
    "pipeline": "pipeline.py",
    "state": "state.py",
    "restart": "restart.py",
    "large_batch": "large_batch.py",
    "connect": "connect.py",
    "read_state": "read_state.py",
    "fork": "fork.py",
    "verify": "verify.py",
    "key_index": "key_index.py",
}


def main() -> int:
    """Run the named benchmarks, or all; stop at the first failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(BENCHES)}")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "local")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    for name in arguments.names or BENCHES:
        print(f"== {name}", flush=True)
        target = arguments.results / f"{name}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(HERE / BENCHES[name]), "--json", str(target)]
        status = subprocess.call(command)
        if status:
            return status
        print(f"== result in {target}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
