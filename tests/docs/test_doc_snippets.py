"""The code of README and docs runs: the pages that need no Spark session."""

from pathlib import Path

import pytest
from tests.support.project.snippets import pages_to_run, run_page

PAGES = pages_to_run(with_spark=False)


def test_there_are_pages() -> None:
    assert {"docs/tutorial/test-it.md", "docs/reference/options.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_the_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page, tmp_path, {"__name__": "snippets"})
