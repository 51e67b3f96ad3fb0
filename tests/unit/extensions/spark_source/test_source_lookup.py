"""Spark imports every package `pyspark_<name>`: ours must be found, and be cheap and harmless."""

import subprocess
import sys

CODE = """
import pkgutil, sys
from pyspark.sql.datasource import DataSource
assert "pyspark_statelog" in {module.name for module in pkgutil.iter_modules()}
import pyspark_statelog
assert issubclass(pyspark_statelog.DefaultSource, DataSource)
print(pyspark_statelog.DefaultSource.name(), *(module for module in sys.modules if module == "statelog"))
"""


def test_the_lookup_imports_nothing_of_statelog() -> None:
    said = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert (0, "statelog\n") == (said.returncode, said.stdout), said.stderr
