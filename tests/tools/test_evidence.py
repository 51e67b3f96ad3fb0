"""The recorder of campaigns: what it writes, and when it writes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.project import evidence


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(evidence, "_records", {})
    monkeypatch.setenv(evidence.FOLDER, str(tmp_path / "records"))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    return tmp_path / "records"


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*"))]


def test_a_campaign_that_ends_writes_what_it_did(folder: Path) -> None:
    servers = [evidence.server("moto")]
    with evidence.campaign(
        "kills of X", "disk", seeds=range(5, 9), servers=servers, spark=True
    ) as record:
        record.runs, record.kills, record.commits = 4, 12, 30
        record.store_faults.update({"slow": 1, "409": 2})
        record.counts["requests"] += 100
        record.simulated_hours = 1.23456
    (stored,) = records(folder)
    expected = {
        "campaign": "kills of X", "case": "disk", "seeds": [5, 8], "runs": 4, "kills": 12,
        "commits": 30, "store_faults": {"409": 2, "slow": 1}, "counts": {"requests": 100},
        "simulated_hours": 1.235, "lost": 0, "findings": [], "machine": evidence.machine(),
    }  # fmt: skip
    assert expected == {name: stored[name] for name in expected}
    assert stored["servers"][0].startswith("moto ")
    assert stored["spark"].split(".")[0].isdigit()
    assert stored["commit"] == "unknown" or len(stored["commit"].split()[0]) >= 10
    (path,) = folder.iterdir()
    assert path.name.startswith("kills-of-x.disk.")
    assert path.suffix == ".json"


@pytest.mark.parametrize("name", [evidence.FOLDER, "PYTEST_XDIST_WORKER"])
def test_nothing_is_written_without_the_variable_or_in_a_worker(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "" if name == evidence.FOLDER else "gw0")
    for _ in range(2):
        with evidence.campaign("a") as record:
            record.runs += 1
        assert 1 == record.runs
    with pytest.raises(ValueError, match="bad"), evidence.campaign("a"):
        raise ValueError("bad")
    assert not folder.exists()


def test_blocks_of_one_campaign_are_one_record_and_cases_are_not(folder: Path) -> None:
    for first in (10, 0):
        for case in ("a", "b"):
            with evidence.campaign("c", case, seeds=range(first, first + 10)) as record:
                record.runs += 10
                record.store_faults["slow"] += 2
    stored = records(folder)
    assert ["a", "b"] == [each["case"] for each in stored]
    assert [[0, 19]] * 2 == [each["seeds"] for each in stored]
    assert [20] * 2 == [each["runs"] for each in stored]
    assert [{"slow": 4}] * 2 == [each["store_faults"] for each in stored]


def test_a_failure_is_a_finding_without_paths_and_stays_one(folder: Path) -> None:
    def fail() -> None:
        with evidence.campaign("c") as record:
            record.kills = 3
            raise AssertionError("row 7 is lost in /tmp/some/folder, and\nmore lines")

    with pytest.raises(AssertionError, match="row 7"):
        fail()
    with evidence.campaign("c"):
        pass
    (stored,) = records(folder)
    assert ["AssertionError: row 7 is lost in <path>, and"] == stored["findings"]
    assert stored["lost"] is None
    assert 3 == stored["kills"]


def test_a_time_out_is_a_finding_and_a_skip_is_not(folder: Path) -> None:
    with pytest.raises(pytest.skip.Exception), evidence.campaign("skipped"):
        pytest.skip("no server")
    with pytest.raises(pytest.fail.Exception), evidence.campaign("late"):
        pytest.fail("Timeout >300.0s")
    (stored,) = records(folder)
    assert ("late", ["Failed: Timeout >300.0s"]) == (stored["campaign"], stored["findings"])


def test_an_interrupted_campaign_writes_nothing(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt), evidence.campaign("c"):
        raise KeyboardInterrupt
    assert not folder.exists()


def test_a_server_that_is_not_a_python_package_has_its_name_only() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(evidence._PACKAGES, "moto", "no-such-package")
        assert "moto" == evidence.server("moto")


def test_a_commit_is_named_with_its_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"rev-parse": "0123456789", "status": ""}
    monkeypatch.setattr(evidence, "_git", lambda command, *_: answers[command])
    evidence._commit.cache_clear()
    assert "0123456789" == evidence._commit()
    answers["status"] = " M src/statelog/errors.py"
    evidence._commit.cache_clear()
    assert "0123456789 with changes" == evidence._commit()

    def missing(*arguments: str) -> str:
        raise FileNotFoundError("git")

    monkeypatch.setattr(evidence, "_git", missing)
    evidence._commit.cache_clear()
    assert "unknown" == evidence._commit()
    evidence._commit.cache_clear()
