"""Which key groups the filters of a query leave."""

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from statelog.extensions.spark_source.readers import key_groups_left
from statelog.model import KeyGroupRange
from statelog.state.keys.key_groups import key_group_of

ALL = KeyGroupRange(128, 255)
KEY = pa.schema([("customer", pa.string()), ("day", pa.int32())])


@dataclass(frozen=True)
class EqualTo:
    attribute: tuple[str, ...]
    value: Any


@dataclass(frozen=True)
class GreaterThan(EqualTo):
    pass


CUSTOMER, FIRST_DAY = EqualTo(("key", "customer"), "a"), EqualTo(("key", "day"), 1)
GROUP = 128 + key_group_of(("a", 1), KEY, 128)


@pytest.mark.parametrize(
    ("filters", "key_groups"),
    [
        ([], ALL),
        ([CUSTOMER], ALL),
        ([CUSTOMER, GreaterThan(("key", "day"), 1)], ALL),
        ([CUSTOMER, EqualTo(("value", "day"), 1)], ALL),
        ([CUSTOMER, EqualTo(("key", "day"), None)], ALL),
        ([CUSTOMER, EqualTo(("key", "day"), "no int")], ALL),
        ([FIRST_DAY, CUSTOMER], KeyGroupRange(GROUP, GROUP)),
        ([EqualTo(("key_group",), 130)], KeyGroupRange(130, 130)),
        ([EqualTo(("key_group",), 3)], KeyGroupRange.empty()),
        ([EqualTo(("key_group",), -3)], ALL),
        ([EqualTo(("key_group",), 255 + 128 - GROUP), CUSTOMER, FIRST_DAY], KeyGroupRange.empty()),
    ],
)
def test_only_a_whole_key_selects_key_groups(
    filters: list[EqualTo], key_groups: KeyGroupRange
) -> None:
    assert key_groups == key_groups_left(filters, KEY, ALL)


def test_a_key_that_only_spark_hashes_leaves_all() -> None:
    key = pa.schema([("pair", pa.struct([("a", pa.int64())]))])
    assert ALL == key_groups_left([EqualTo(("key", "pair"), {"a": 1})], key, ALL)


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
