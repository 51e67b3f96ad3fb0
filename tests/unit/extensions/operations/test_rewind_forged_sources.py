"""The names of the sources' logs come from metadata: a rewind, which deletes files there, checks them."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.forgeries.foreign_places import forge_checkpoints, with_properties
from tests.support.locations.stored_job import StoredJob

from statelog.checkpoint.query_files import StoredQuery
from statelog.errors import CorruptionError
from statelog.extensions.operations.rewind import plan_rewind, rewind_points
from statelog.store import open_store


@pytest.mark.parametrize("options", [{}, {"backend": "fsspec"}])
@pytest.mark.parametrize("field", ["source_folders", "source_logs"])
def test_a_rewind_stays_in_its_folder(field: str, options: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    job = StoredJob(2, tmp_path)
    job.micro_batch()
    job.micro_batch()
    name = "../../victim"
    [log] = job.record().to_properties()["source_logs"]  # type: ignore[misc]
    forged = [name] if field == "source_folders" else [{**log, "folder": name}]  # type: ignore[dict-item]
    forge_checkpoints(tmp_path / "state", partial(with_properties, {field: forged}))
    query = StoredQuery(open_store(str(job.folder), storage_options=options))
    for use in (
        partial(plan_rewind, query, job.store, 0),
        partial(rewind_points, query, job.store),
    ):
        with pytest.raises(CorruptionError, match="forged or damaged"):
            use()
