"""
Runs commands of the command line in a process that reports what they do outside of allowed folders.

Three tripwires: Python's audit events (files, connections, processes, code); inotify on the folder of a
victim, which also sees what native code reads there; and a comparison of the victim's files.  A
connection of native code is seen by the listener of the process that starts this one.

`python -m tests.support.processes.tripwires PLAN` prints a JSON line for each run of the plan.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import shutil
import struct
import sys
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SYSTEM = ("/dev", "/etc", "/lib", "/proc", "/sys", "/usr")
"""Folders of the machine, which Python and its packages read."""
_READS = ("os.listdir", "os.scandir", "glob.glob", "ctypes.dlopen", "sqlite3.connect")
_WRITES = (
    "os.chmod", "os.chown", "os.link", "os.mkdir", "os.mkfifo", "os.remove", "os.removexattr", "os.rename",
    "os.rmdir", "os.setxattr", "os.symlink", "os.truncate", "os.utime", "shutil.copyfile", "shutil.move",
    "shutil.rmtree",
)  # fmt: skip
_STARTS = (
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "os.system",
    "pty.spawn", "subprocess.Popen", "webbrowser.open",
)  # fmt: skip
_CONNECTS = (
    "ftplib.connect", "http.client.connect", "smtplib.connect", "socket.bind", "socket.connect",
    "socket.getaddrinfo", "socket.gethostbyaddr", "socket.gethostbyname", "socket.sendto", "urllib.Request",
)  # fmt: skip
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_ALL_EVENTS = 0x00000FFF
_OPENED = 0x00000038  # IN_OPEN, IN_CLOSE_WRITE, IN_CLOSE_NOWRITE
_OF_A_FOLDER = 0x40000000
_EVENT = struct.Struct("iIII")


@dataclass
class Run:
    """
    One command.

    Args:
        words: Its arguments.
        template: The folder whose copy is `case` while it runs.
        folder: Where it runs, below `case`.
        allowed: Folders and files that it may read and write.
        agreed: Files of the victim that it may read.
    """

    words: list[str]
    template: str
    folder: str
    allowed: list[str]
    agreed: list[str] = field(default_factory=list)


@dataclass
class Report:
    """What a command did: its status, its output, and what it did outside."""

    words: list[str]
    template: str
    status: int | None
    output: str
    outside: list[str]


class Blocked(BaseException):
    """A program that was not started."""


class AuditHook:
    """Notes audit events outside of the allowed folders while it is active."""

    def __init__(self) -> None:
        self.active = False
        self.readable: tuple[str, ...] = ()
        self.writable: tuple[str, ...] = ()
        self.outside: list[str] = []
        python = {
            sys.prefix,
            sys.base_prefix,
            sys.exec_prefix,
            str(ROOT),
            os.path.dirname(os.__file__),
        }
        self.python = tuple({*python, *map(os.path.realpath, python)})
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        self.active = False  # what this method itself does is not reported
        try:
            self._note(event, arguments)
        finally:
            self.active = True

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _STARTS:
            self.outside.append(f"{event} {arguments[:2]}")
            raise Blocked(event)
        if event in _CONNECTS:
            self.outside.append(f"{event} {arguments[-2:]}")
        elif event == "open":
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            self._path(event, arguments[0], write=bool(flags & _WRITE_FLAGS))
        elif event == "os.symlink":
            self._path(event, arguments[1], write=True)
        elif event in _READS or event in _WRITES:
            for argument in arguments[: 2 if event in ("os.rename", "os.link") else 1]:
                self._path(event, argument, write=event in _WRITES)
        elif event == "exec" and isinstance(arguments[0], CodeType):
            file = arguments[0].co_filename
            if os.path.isabs(file) and not is_below(file, self.python):
                self.outside.append(f"exec {file}")

    def _path(self, event: str, path: object, *, write: bool) -> None:
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            return
        folder, name = os.path.split(os.path.abspath(path))
        # An entry is removed or renamed without following it.
        real = (
            os.path.join(os.path.realpath(folder), name)
            if event in _WRITES
            else os.path.realpath(path)
        )
        if not is_below(real, self.writable if write else self.readable):
            self.outside.append(f"{event} {'write' if write else 'read'} {real}")


def is_below(path: str, folders: tuple[str, ...]) -> bool:
    """Return whether a path is one of some files, or in one of some folders."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


class Victim:
    """The files of somebody else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._watch = self._libc.inotify_init1(os.O_NONBLOCK)
        self._names: dict[int, str] = {}
        self._before = self._content()
        for watched in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
            number = self._libc.inotify_add_watch(self._watch, os.fsencode(watched), _ALL_EVENTS)
            assert number > 0, "inotify does not work here"
            self._names[number] = str(watched)
        self.touched()

    def _content(self) -> dict[str, tuple[int, bytes]]:
        files = [path for path in self._folder.rglob("*") if path.is_file()]
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    def touched(self) -> set[str]:
        """
        Return the files and folders that were opened, listed or changed since the last call.

        A folder that was opened only was not listed: a walk opens folders that it does not enter.
        """
        names = set()
        while True:
            try:
                data = os.read(self._watch, 1 << 16)
            except BlockingIOError:
                return names
            at = 0
            while at < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size
                name = os.fsdecode(data[at : at + length].rstrip(b"\0"))
                at += length
                if mask & _OF_A_FOLDER and not mask & ~(_OPENED | _OF_A_FOLDER):
                    continue
                names.add(os.path.join(self._names.get(number, "?"), name).rstrip("/"))

    def outside(self, agreed: tuple[str, ...]) -> list[str]:
        """Return what was done to the files, what both sides agreed on excepted."""
        touched = [
            f"touched {name}" for name in sorted(self.touched()) if not is_below(name, agreed)
        ]
        now = self._content()
        changed = {*now.items()} ^ {*self._before.items()}
        self.touched()
        return touched + [f"changed {name}" for name in sorted({name for name, _ in changed})]


@contextlib.contextmanager
def captured() -> Iterator[io.BytesIO]:
    """Collect standard output and standard error."""
    data = io.BytesIO()
    text = io.TextIOWrapper(data, encoding="utf-8", errors="replace", write_through=True)
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        yield data
    text.detach()


class World:
    """
    The folder of one test: `case` and `out`, which a command may use, and `victim`.

    Everything else in it is a finding.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.victim = Victim(folder / "victim")
        self.hook = AuditHook()
        self.names = {*os.listdir(folder), "case", "out"}

    def run(self, run: Run) -> Report:
        """Run one command on a fresh copy of its template."""
        from statelog.cli import main as cli

        os.chdir(self.folder)
        for name in ("case", "out"):
            shutil.rmtree(name, ignore_errors=True)
        shutil.copytree(run.template, "case", symlinks=True)
        os.mkdir("out")
        os.chdir(self.folder / "case" / run.folder)
        hook = self.hook
        hook.outside = []
        hook.writable = (
            *run.allowed,
            str(self.folder / "out"),
            str(self.folder / "tmp"),
            os.devnull,
        )
        hook.readable = (*hook.writable, *SYSTEM, *hook.python, *run.agreed)
        status: int | None = None
        with captured() as output:
            hook.active = True
            try:
                status = cli.run(run.words)
            except BaseException:
                traceback.print_exc()
            finally:
                hook.active = False
        outside = [*hook.outside, *self.victim.outside(tuple(run.agreed))]
        outside += [f"created {name}" for name in {*os.listdir(self.folder)} - self.names]
        text = output.getvalue().decode("utf-8", "replace")
        return Report(run.words, Path(run.template).name, status, text, outside)


def main(plan: str) -> None:
    """Run a plan: the folder, and the commands."""
    stored = json.loads(Path(plan).read_text())
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    world = World(Path(stored["folder"]))
    for run in stored["runs"]:
        out.write(json.dumps(asdict(world.run(Run(**run)))) + "\n")
        out.flush()


if __name__ == "__main__":
    main(sys.argv[1])
