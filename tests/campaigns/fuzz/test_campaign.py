"""
The campaign of `make chaos`: damage every kind of stored file, raw and with right checksums.

`STATELOG_FUZZ_SECONDS` sets its length (120), `STATELOG_FUZZ_SEED` its first seed.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.campaigns.fuzz import campaign
from tests.campaigns.fuzz.stored_kinds import all_kinds

SECONDS = float(os.environ.get("STATELOG_FUZZ_SECONDS", "120"))
NEEDS_LINUX = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="needs Linux's /proc"
)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> list[campaign.Kind]:
    return all_kinds(tmp_path_factory.mktemp("samples"))


def test_every_sample_is_read_and_has_one_answer(kinds: list[campaign.Kind]) -> None:
    for kind in kinds:
        assert kind.samples, kind.name
        for sample in kind.samples:
            assert kind.same(kind.read(sample), kind.read(sample)), kind.name


def test_forgeries_reach_the_decoders(kinds: list[campaign.Kind]) -> None:
    """Of each kind with checksums some forgery is read, so that they were repaired."""
    for kind in kinds:
        if kind.name.startswith("location") or not kind.forgeries:
            continue
        answers = 0
        for seed in range(60):
            rng = random.Random(seed)
            data = rng.choice(kind.forgeries)(rng, rng.choice(kind.samples))
            for at, sample in enumerate(kind.samples):
                kind.answers.setdefault(at, kind.read(sample))
            verdict, text = campaign.outcome(kind, 0, campaign.FORGED, data)
            assert not text, (kind.name, seed, text)
            answers += verdict == campaign.ANSWER
        assert answers, kind.name


def test_a_wrong_answer_and_another_exception_are_findings() -> None:
    def read(data: bytes) -> object:
        return data if data != b"key" else {}["key"]

    kind = campaign.Kind("a", [b"x"], read, same=lambda expected, answer: expected == answer)
    kind.answers[0] = b"x"
    assert ("answer", "") == campaign.outcome(kind, 0, campaign.RAW, b"x")
    assert "wrong answer" == campaign.outcome(kind, 0, campaign.RAW, b"y")[0]
    assert "answer" == campaign.outcome(kind, 0, campaign.FORGED, b"y")[0]
    assert "KeyError" == campaign.outcome(kind, 0, campaign.RAW, b"key")[0]


@NEEDS_LINUX
@pytest.mark.parametrize(
    ("seed", "verdict"),
    [(-3_000_000, "crash"), (-2_000_000, "time-out"), (-1_000_000, "MemoryError")],
)
def test_the_end_of_a_child_is_a_finding(
    seed: int, verdict: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if verdict == "time-out":
        monkeypatch.setattr(campaign, "READ_SECONDS", 2)
    monkeypatch.setattr(campaign, "KEPT", tmp_path)
    monkeypatch.setattr(campaign, "ROOT", tmp_path)
    summary = campaign.run(0.01, seed)
    assert [verdict] == [finding["verdict"] for finding in summary.findings]
    finding = summary.findings[0]
    assert (seed, "hostile reader") == (finding["seed"], finding["kind"])
    assert b"data" == (tmp_path / finding["file"]).read_bytes()


@NEEDS_LINUX
@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 600)
def test_damaged_files_are_read_right_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("STATELOG_FUZZ_SEED") or int.from_bytes(os.urandom(4), "big") << 24)
    with capsys.disabled():
        print(f"\nseeds from {seed}", flush=True)
    summary = campaign.run_recorded(SECONDS, seed)
    campaign.write_summary(summary, campaign.KEPT / "summary.json")
    with capsys.disabled():
        print(summary.text())
    assert not summary.findings, json.dumps(summary.findings[:5], indent=1)
