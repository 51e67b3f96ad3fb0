"""
Keys with the hash and key group that Spark gave them.

The table of docs/reference/formats/key-groups.md.
"""

import datetime as dt
import decimal
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

TYPES: dict[str, tuple[pa.DataType, Callable[[str], Any]]] = {
    "BOOLEAN": (pa.bool_(), lambda text: text == "true"),
    "TINYINT": (pa.int8(), int),
    "SMALLINT": (pa.int16(), int),
    "INT": (pa.int32(), int),
    "BIGINT": (pa.int64(), int),
    "FLOAT": (pa.float32(), float),
    "DOUBLE": (pa.float64(), float),
    "DECIMAL(10,2)": (pa.decimal128(10, 2), decimal.Decimal),
    "DECIMAL(38,10)": (pa.decimal128(38, 10), decimal.Decimal),
    "STRING": (pa.string(), lambda text: text[1:-1]),
    "BINARY": (pa.binary(), bytes.fromhex),
    "DATE": (pa.date32(), dt.date.fromisoformat),
    "TIMESTAMP": (pa.timestamp("us", "UTC"), dt.datetime.fromisoformat),
    "TIMESTAMP_NTZ": (pa.timestamp("us"), dt.datetime.fromisoformat),
}
"""Arrow's type, and what reads the text of a value, for each of Spark's types."""

VECTORS: list[tuple[list[tuple[str, str]], int, int]] = [
    ([("BOOLEAN", "true")], -6698625589789238999, 41),
    ([("BOOLEAN", "false")], 3614696996920510707, 115),
    ([("TINYINT", "-128")], 4160238337661960656, 80),
    ([("SMALLINT", "-1")], 2017008487422258757, 69),
    ([("INT", "0")], 3614696996920510707, 115),
    ([("INT", "12345")], -122588266845139798, 42),
    ([("INT", "-2147483648")], 2073849959933241805, 77),
    ([("BIGINT", "0")], -5252525462095825812, 108),
    ([("BIGINT", "1")], -7001672635703045582, 50),
    ([("BIGINT", "9223372036854775807")], -3246596055638297850, 6),
    ([("BIGINT", "-9223372036854775808")], -8619748838626508300, 116),
    ([("FLOAT", "1.5")], 6163473420726370430, 126),
    ([("DOUBLE", "0.0")], -5252525462095825812, 108),
    ([("DOUBLE", "-0.0")], -5252525462095825812, 108),
    ([("DOUBLE", "nan")], -3127944061524951246, 50),
    ([("DOUBLE", "-1e300")], 3086024234770041280, 64),
    ([("DECIMAL(10,2)", "-12345678.90")], 8562530703369362178, 2),
    ([("DECIMAL(38,10)", "1.0000000000")], -2853959725596059730, 46),
    ([("DECIMAL(38,10)", "-9999999999999999999999999999.9999999999")], -2254039905620870768, 16),
    ([("STRING", "''")], -7444071767201028348, 4),
    ([("STRING", "'a'")], -8582455328737087284, 76),
    ([("STRING", "'customer'")], -8146978097367304398, 50),
    ([("STRING", "'Grüße, 世界 🌍'")], -4620278235296315928, 104),
    ([("STRING", "'a text of exactly 32 bytes, yes.'")], 1194870653126740015, 47),
    (
        [("STRING", "'a text of more than thirty-two bytes, for the four lanes of the hash'")],
        3732169402455723135,
        127,
    ),
    ([("BINARY", "00ff10")], 5415089035989094387, 115),
    ([("DATE", "1970-01-01")], 3614696996920510707, 115),
    ([("DATE", "2011-12-09")], 3015353252050640374, 118),
    ([("DATE", "0001-01-01")], 6773727150484150602, 74),
    ([("TIMESTAMP", "2011-12-09 12:50:00.123456+00:00")], 906914828889074845, 29),
    ([("TIMESTAMP", "1969-12-31 23:59:59.999999+00:00")], 3858142552250413010, 82),
    ([("TIMESTAMP_NTZ", "2011-12-09 12:50:00.123456")], 906914828889074845, 29),
    ([("STRING", "NULL")], 42, 42),
    ([("STRING", "'a'"), ("INT", "1")], -4810547614043336770, 62),
    ([("INT", "1"), ("STRING", "'a'")], 8205864924878002737, 49),
    ([("STRING", "'a'"), ("STRING", "NULL")], -8582455328737087284, 76),
    ([("STRING", "NULL"), ("STRING", "'a'")], -8582455328737087284, 76),
    (
        [("BIGINT", "17850"), ("DATE", "2010-12-01"), ("BOOLEAN", "true"), ("DOUBLE", "2.55")],
        -8569189230660999461,
        91,
    ),
]
"""Columns as (type, text), hash, key group of 128."""


def key_of(columns: Sequence[tuple[str, str]]) -> tuple[tuple[Any, ...], pa.Schema]:
    """Return a key and its schema from types and texts."""
    values = tuple(None if text == "NULL" else TYPES[kind][1](text) for kind, text in columns)
    types = pa.schema([(f"c{index}", TYPES[kind][0]) for index, (kind, _) in enumerate(columns)])
    return values, types
