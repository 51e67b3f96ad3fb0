"""What all changelog tests share."""

import pytest

from statelog.changelog.local_recovery import LocalBackup


@pytest.fixture(autouse=True)
def patient_backups(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a local copy may take longer than an upload waits for it; tests wait."""
    monkeypatch.setitem(LocalBackup.__init__.__kwdefaults__, "patience_s", 30.0)
