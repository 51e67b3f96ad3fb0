"""The contract is shipped, and needs pytest only where it is used."""

import subprocess
import sys


def test_pytest_is_not_imported_by_statelog():
    code = (
        "import sys, statelog, statelog.store, statelog.testing; sys.exit('pytest' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
