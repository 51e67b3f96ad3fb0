"""Groups of rows as Spark's workers read them."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pandas.testing
import pyarrow as pa

from statelog.spark.rows.layout import InputLayout
from statelog.spark.rows.pandas_input import FrameInput, PandasSettings
from statelog.state.encoding.values import KeyCodec

ZONE = "America/New_York"
SETTINGS = PandasSettings(
    timezone=ZONE,
    max_records=10_000,
    max_bytes=2**31 - 1,
    safecheck=True,
    assign_by_name=True,
    int_to_decimal=False,
    int_extension=False,
)


def read(table: pa.Table, keys: list[int], settings: PandasSettings = SETTINGS) -> FrameInput:
    """Our input of *table*, all in two key groups, in several batches."""
    groups = pa.array([hash(str(key)) % 2 for key in table.column(keys[0]).to_pylist()], pa.int32())
    whole = table.add_column(0, "__key_group", groups)
    codec = KeyCodec(pa.schema([table.schema.field(key) for key in keys]))
    frame_input = FrameInput(InputLayout(tuple(key + 1 for key in keys), 1), codec, settings)
    frame_input.read(whole.to_batches(max_chunksize=7))
    return frame_input


def all_keys(frame_input: FrameInput) -> Iterator[tuple[Any, Any, list[pd.DataFrame]]]:
    for key_group in frame_input.key_groups():
        for key, shown, frames in frame_input.keys(key_group):
            yield key, shown, list(frames)
