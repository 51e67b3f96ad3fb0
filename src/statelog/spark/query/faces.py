"""
The table of the faces, and the face of a processor.

A face is imported at its first use: what makes its runs is above this package, and a worker that runs
plain Rows does not import the extensions.  No other module of the engine names an extension.
"""

from __future__ import annotations

import functools
from typing import Final

from statelog.errors import UsageError
from statelog.spark.extension_table import loaded
from statelog.spark.query.face import FACE, Face

_FACES: Final = {
    "rows": "statelog.spark.worker.single_keys:ROWS",
    "pandas": "statelog.spark.worker.single_keys:PANDAS",
    "columns": "statelog.extensions.columns.face:COLUMNS",
}
"""The constant of each face, as `module:name`."""

PROCESSORS: Final = "a StatefulProcessor or ColumnarProcessor"
"""The base classes of the faces, for messages."""


def face_of(processor: object) -> Face:
    """Return the face of a processor of `transform_with_state`."""
    return _face(getattr(type(processor), FACE, "rows"))


def pandas_face_of(processor: object) -> Face:
    """Return the face of a processor of pandas frames; raises `UsageError` for one of another face."""
    face = face_of(processor)
    if not face.handles_single_keys:
        raise UsageError(
            f"{type(processor).__name__} is a {face.processor_type.__name__}: give it to "
            "transform_with_state, not to transform_with_state_in_pandas"
        )
    return _face("pandas")


@functools.cache
def _face(name: str) -> Face:
    return loaded(_FACES[name], Face)
