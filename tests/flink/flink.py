"""
The real Flink in a JVM of its own: `FlinkChangelog.java` spoken to in lines of text.

Its page of grammar is the comment above the Java class.
"""

import base64
import itertools
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from statelog.demo.java import ensure_java
from statelog.errors import StatelogError
from statelog.model import (
    ChangelogStateHandle,
    FileStateHandle,
    HandleAndOffset,
    KeyGroupRange,
    StateChange,
)

PROGRAM = "FlinkChangelog"
JAVA_TARGET = "17"
TIMEOUT_S = 240
LOCAL, REMOTE = "file", "remote"  # the second is one that Flink downloads into its cache


class NoJdk(Exception):
    """This machine cannot compile the program; the message says why."""


@dataclass(frozen=True)
class ReadByFlink:
    """What Flink's reader for recovery returned, handle by handle."""

    local: list[list[StateChange]]
    remote: list[list[StateChange]]
    cached_files: int


@dataclass(frozen=True)
class WrittenByFlink:
    """One writer's handle of one checkpoint, and what Flink itself reads through it."""

    checkpoint_id: int
    writer: int
    handle: ChangelogStateHandle
    changes: list[StateChange] = field(repr=False)


@dataclass(frozen=True)
class Flink:
    """A compiled program: each call starts one JVM."""

    java: Path
    class_path: str

    def read(
        self, handles: Sequence[ChangelogStateHandle], root: Path, scratch: Path
    ) -> ReadByFlink:
        """
        Let Flink read *handles*, whose paths are relative to *root*, as one recovery would.

        All of them first from local disk, then as if they were on a remote store.
        """
        asked: list[str] = []
        for scheme, handle in itertools.product((LOCAL, REMOTE), handles):
            key_groups = handle.key_group_range
            asked.append(f"handle {key_groups.start} {key_groups.end} {handle.size_bytes}")
            asked += [_entry(entry, root, scheme) for entry in handle.handles_and_offsets]
        changes: list[list[StateChange]] = []
        cached = -1
        for words in self._run("read", asked, scratch):
            match words:
                case ["handle"]:
                    changes.append([])
                case ["change", key_group, value]:
                    changes[-1].append(_change(key_group, value))
                case ["cached", files]:
                    cached = int(files)
                case _:
                    raise AssertionError(f"Flink's end said {words}")
        assert len(changes) == 2 * len(handles)
        return ReadByFlink(changes[: len(handles)], changes[len(handles) :], cached)

    def write(self, asked: Iterable[str], root: Path, scratch: Path) -> list[WrittenByFlink]:
        """Let Flink write what *asked* says, below *root*."""
        written: list[WrittenByFlink] = []
        head: list[int] = []
        entries: list[HandleAndOffset] = []
        changes: list[StateChange] = []

        def end() -> None:
            if head:
                checkpoint_id, writer, first, last, size = head
                handle = handle_of(KeyGroupRange(first, last), entries, size, checkpoint_id)
                written.append(WrittenByFlink(checkpoint_id, writer, handle, changes))

        for words in self._run("write", asked, scratch):
            match words:
                case ["handle", *numbers]:
                    end()
                    head, entries, changes = [int(number) for number in numbers], [], []
                case ["file", offset, size, uri]:
                    path = Path(uri.removeprefix(f"{LOCAL}:")).relative_to(root)
                    file = FileStateHandle(path.as_posix(), int(size))
                    entries.append(HandleAndOffset(file, int(offset)))
                case ["change", key_group, value]:
                    changes.append(_change(key_group, value))
                case _:
                    raise AssertionError(f"Flink's end said {words}")
        end()
        return written

    def _run(self, mode: str, asked: Iterable[str], scratch: Path) -> Iterator[list[str]]:
        scratch.mkdir(parents=True, exist_ok=True)
        ended = subprocess.run(
            [
                *(self.java, "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *("-cp", self.class_path, PROGRAM, mode, scratch),
            ],
            input="\n".join(asked),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert ended.returncode == 0, f"Flink's end failed:\n{ended.stderr[-4000:]}"
        return (line.split(" ") for line in ended.stdout.splitlines())


def find_javac() -> Path:
    """Return the Java compiler of this machine; raise `NoJdk` if there is none."""
    try:
        found: Path | str | None = ensure_java() / "bin" / "javac"
    except StatelogError as error:
        raise NoJdk(str(error)) from error
    if not Path(str(found)).is_file():
        found = shutil.which("javac")
    if found is None:
        raise NoJdk("there is no javac here; set JAVA_HOME to a JDK")
    return Path(found)


def compile_program(jar: Path, folder: Path) -> Flink:
    """Compile the program beside *jar* into *folder*."""
    javac = find_javac()
    source = Path(__file__).with_name(f"{PROGRAM}.java")
    subprocess.run([javac, "--release", JAVA_TARGET, "-cp", jar, "-d", folder, source], check=True)
    return Flink(javac.resolve().with_name("java"), f"{jar}:{folder}")


def handle_of(
    key_groups: KeyGroupRange,
    entries: Iterable[HandleAndOffset],
    size_bytes: int,
    checkpoint_id: int = 0,
) -> ChangelogStateHandle:
    return ChangelogStateHandle(
        key_group_range=key_groups,
        handles_and_offsets=tuple(entries),
        size_bytes=size_bytes,
        incremental_size_bytes=size_bytes,
        state_handle_id="flink-campaign",
        checkpoint_id=checkpoint_id,
    )


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _entry(entry: HandleAndOffset, root: Path, scheme: str) -> str:
    stream = entry.handle
    if isinstance(stream, FileStateHandle):
        return f"file {entry.offset} {stream.size_bytes} {scheme}:{root / stream.path}"
    return f"bytes {entry.offset} {encoded(stream.data)}"


def _change(key_group: str, value: str) -> StateChange:
    return StateChange(int(key_group), base64.b64decode(value))
