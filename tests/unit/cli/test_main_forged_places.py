"""
Every command is given every forgery: nothing outside of the location is read, written, connected to or run.

The commands run in a process with tripwires, `tests.support.processes.tripwires`; the forgeries are those of `tests.support.forgeries.foreign_places`,
the calls those of `tests.support.forgeries.hostile_location`.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("pyspark")


from tests.support.forgeries.foreign_places import Forger, Forgery
from tests.support.forgeries.hostile_location import CALLS, words_of
from tests.support.processes.tripwires import ROOT, Report, Run

from statelog.cli import main as cli

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's"),
]


class Listener:
    """A port of this machine; connections to it are counted and answered with 404."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.requests: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(1)
                try:
                    self.requests.append(connection.recv(200))
                    connection.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                except OSError:
                    self.requests.append(b"?")

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


KINDS = {
    "hostile-names", "recording-0", "name-up-in-log", "name-server-in-snapshot", "name-up-in-listed",
    "name-up-in-folder", "name-up-in-logs", "name-server-in-recording", "parent-s3-no-fork",
    "parent-webhdfs-no-fork", "parent-victim-victims-fork", "parent-victim-folder-no-fork",
    "parent-circle-no-fork", "link-chk-1", "link-recordings", "link-audit", "link-trap.py",
    "position-victim", "position-server", "tag-0",
}  # fmt: skip
"""A forgery of each kind; the others are tried with the slow tests."""


def world(folder: Path) -> Path:
    return Path(os.path.realpath(folder))


def run_of(forger: Forger, forgery: Forgery, command: str, words: Sequence[str]) -> Run:
    place = forger.case / forgery.location
    full = words_of(
        words, loc=str(place), out=str(forger.folder / "out" / "o"), query=str(forger.case / "query"),
        variable=forgery.variable, key=forgery.key,
    )  # fmt: skip
    allowed = [str(place), *(str(forger.case / name) for name in ("query", "new-query"))]
    template = str(forger.folder / "templates" / forgery.name)
    return Run([command, *full], template, forgery.location, allowed, forgery.agreed)


def reports(forger: Forger, runs: Sequence[Run]) -> list[Report]:
    """Run commands in a process of their own, as a user whose credentials and endpoint are set."""
    plan = forger.folder / "plan.json"
    plan.write_text(json.dumps({"folder": str(forger.folder), "runs": list(map(asdict, runs))}))
    environment = {
        name: value for name, value in os.environ.items() if "proxy" not in name.lower()
    } | {
        "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": forger.server, "AWS_ALLOW_HTTP": "true",
        "HOME": str(forger.folder / "home"), "TMPDIR": str(forger.folder / "tmp"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.processes.tripwires", str(plan)], cwd=ROOT, env=environment,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    reported = [Report(**json.loads(line)) for line in done.stdout.splitlines()]
    assert len(reported) == len(runs), done.stderr[-3000:]
    return reported


def text_of(report: Report) -> str:
    """Return what a command did outside, and the end of its output, in lines for a person."""
    lines = [f"{report.template}: statelog {' '.join(map(repr, report.words))}"]
    lines += [f"  outside: {path}" for path in report.outside]
    lines += [f"  status {report.status}: {line}" for line in report.output.splitlines()[-3:]]
    return "\n".join(lines)


def test_every_command_is_tried():
    callbacks = [command.callback for command in cli.verbs.registered_commands]
    names = {callback.__name__.replace("_", "-") for callback in callbacks if callback}
    assert names == CALLS.keys(), "a command has no calls in tests/support/forgeries"
    assert all(CALLS.values())


@pytest.mark.parametrize(
    "only", [KINDS, pytest.param(None, marks=[pytest.mark.slow, pytest.mark.timeout(1500)])]
)
def test_every_command_acts_within_the_location_only(only, tmp_path, listener):
    forger = Forger(world(tmp_path), listener.port, only)
    forgeries = forger.make()
    assert only is None or only == {forgery.name for forgery in forgeries}
    runs = [
        run_of(forger, forgery, command, words)
        for forgery in forgeries
        for command, calls in CALLS.items()
        for words in calls
    ]
    reported = reports(forger, runs)
    outside = [item for item in reported if item.outside]
    assert not outside, "\n" + "\n".join(map(text_of, outside))
    assert [] == listener.requests
    assert not (forger.folder / "ran").exists()
    wrong = [item for item in reported if item.status not in (0, 1, 2)]
    assert not wrong, "\n" + "\n".join(map(text_of, wrong))


def test_the_tripwires_see_what_a_user_asks_for(tmp_path, listener):
    """The same calls with the victim's places, named by the user: every kind of access is seen."""
    forger = Forger(world(tmp_path), listener.port, {"hostile-names", "name-up-in-log"})
    hostile, _ = forger.make()
    victim = forger.victim
    calls = (
        ["changelog", str(victim / "state" / "chk-1" / "_metadata")],
        ["copy", "LOC", str(victim / "copy")],
        ["replay", "LOC", "KEY", "--processor", f"{victim / 'secret.py'}:Trap"],
        [
            "tag",
            str(victim / "state"),
            forger.victims_fork.fork_id, "--kind", "fork", "--remove", "--apply",
        ],
        ["checkpoints", "s3://bucket/x"], ["checkpoints", f"http://127.0.0.1:{listener.port}/x"],
    )  # fmt: skip
    before = len(listener.requests)
    runs = [run_of(forger, hostile, words[0], words[1:]) for words in calls]
    read, wrote, ran, deleted, *_ = [
        " ".join(reported.outside) for reported in reports(forger, runs)
    ]
    assert f"touched {victim}/state/chk-1/_metadata" in read
    assert f"changed {victim}/copy/chk-2/_metadata" in wrote
    assert f"exec {victim}/secret.py" in ran
    assert "created ran" in ran
    assert f"changed {victim}/state/tags/fork/" in deleted
    assert len(listener.requests) > before
