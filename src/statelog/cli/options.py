"""Options that several verbs have."""

from __future__ import annotations

from typing import Annotated

import typer

CHECKPOINT_FORMS = "an id, latest, earliest, a tag, or a time such as 2026-11-22T10:30:00+01:00"
CheckpointOption = Annotated[
    str | None,
    typer.Option(help=f"The checkpoint: {CHECKPOINT_FORMS}. The newest one by default."),
]
