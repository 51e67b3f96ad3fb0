"""
Draw the pictures of the documentation, each from one description, as SVG.

`python tools/pictures.py` writes docs/images/*.svg; with `--check` it only reports whether they are up to date.
A picture is a list of shapes.  Colours follow the reader's light or dark mode, and a picture is as
wide as a page at most, so that its text can be read on a phone that is turned.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDTH = 780
LINE = 17
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2933 }
.title { font-weight: 600 } .small { font-size: 12px; fill: #52606d } .mono { font-family: ui-monospace, monospace; font-size: 12px }
.plain { fill: #f5f7fa; stroke: #9aa5b1 } .store { fill: #fff3d6; stroke: #c99a2e } .worker { fill: #dceefb; stroke: #2680c2 }
.driver { fill: #e6e0fa; stroke: #7b61c9 } .bad { fill: #ffe3e3; stroke: #cf1124 } .faded { fill: none; stroke: #9aa5b1; stroke-dasharray: 4 4 }
.arrow { stroke: #616e7c; stroke-width: 1.5; fill: none; marker-end: url(#head) } .head { fill: #616e7c }
@media (prefers-color-scheme: dark) {
text { fill: #e4e7eb } .small { fill: #cbd2d9 }
.plain { fill: #2b3440; stroke: #7b8794 } .store { fill: #4d3d12; stroke: #e0b34a } .worker { fill: #123a56; stroke: #4098d7 }
.driver { fill: #352a5e; stroke: #a08fe0 } .bad { fill: #5c1a1f; stroke: #ef4e4e }
.arrow { stroke: #cbd2d9 } .head { fill: #cbd2d9 }
}
"""


@dataclass(frozen=True)
class Box:
    """A rectangle with lines of text; the first one is its title. `kind` names its colours."""

    x: int
    y: int
    width: int
    height: int
    kind: str
    lines: tuple[str, ...] = ()

    def svg(self) -> str:
        """Return the rectangle and its text, centred."""
        frame = (
            f'<rect class="{self.kind}" x="{self.x}" y="{self.y}" width="{self.width}" '
            f'height="{self.height}" rx="5"/>'
        )
        middle = self.x + self.width // 2
        top = self.y + (self.height - LINE * len(self.lines)) // 2 + 13
        texts = [
            Text(middle, top + LINE * number, line, "title" if number == 0 else "small", "middle")
            for number, line in enumerate(self.lines)
        ]
        return frame + "".join(text.svg() for text in texts)


@dataclass(frozen=True)
class Text:
    """One line of text. `anchor` says which end of it is at x."""

    x: int
    y: int
    text: str
    kind: str = ""
    anchor: str = "start"

    def svg(self) -> str:
        """Return the text element."""
        return (
            f'<text class="{self.kind}" x="{self.x}" y="{self.y}" text-anchor="{self.anchor}">'
            f"{escape(self.text)}</text>"
        )


@dataclass(frozen=True)
class Arrow:
    """A line through points, with a head at its end."""

    points: tuple[tuple[int, int], ...]

    def svg(self) -> str:
        """Return the line."""
        path = " L".join(f"{x} {y}" for x, y in self.points)
        return f'<path class="arrow" d="M{path}"/>'


Shape = Box | Text | Arrow


@dataclass(frozen=True)
class Picture:
    """A picture: its height, what a reader who cannot see it is told, and its shapes."""

    height: int
    description: str
    shapes: Sequence[Shape]

    def svg(self) -> str:
        """Return the whole file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" '
            f'width="{WIDTH}" height="{self.height}" role="img">'
            f"<title>{escape(self.description)}</title><style>{STYLE}</style>"
            '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" '
            'orient="auto"><path class="head" d="M0 0 L8 4 L0 8 Z"/></marker></defs>'
        )
        return head + "\n" + "\n".join(shape.svg() for shape in self.shapes) + "\n</svg>\n"


def down(x: int, start: int, end: int) -> Arrow:
    """Return a vertical arrow."""
    return Arrow(((x, start), (x, end)))


def across(y: int, start: int, end: int) -> Arrow:
    """Return a horizontal arrow."""
    return Arrow(((start, y), (end, y)))


def key_over_batches() -> Picture:
    """Draw one key over micro-batches: overlay, commit object, kill, replay on other tasks."""
    columns = [
        ("batch 1", "+3", ("overlay", "total = 3"), "chk-1", "3"),
        ("batch 2", "+4", ("overlay", "3 + 4 = 7"), "chk-2", "7"),
        ("batch 3", "+5", ("overlay", "7 + 5 = 12"), None, None),
        ("restart on 3 tasks", "", ("replay", "chk-1, chk-2: 7"), None, None),
        ("batch 3 again", "+5", ("overlay", "7 + 5 = 12"), "chk-3", "12"),
    ]
    step, width = 136, 116
    shapes: list[Shape] = [
        Text(8, 62, "rows of ann", "small"),
        Text(8, 122, "Python worker", "small"),
        Text(8, 218, "state location", "small"),
        Text(8, 292, "sink", "small"),
        Box(100, 184, 672, 62, "faded"),
    ]
    for number, (title, rows, overlay, checkpoint, output) in enumerate(columns):
        x = 104 + number * step - (4 if number else 0)
        middle = x + width // 2
        shapes.append(Text(middle, 24, title, "title", "middle"))
        if rows:
            shapes += [Box(x + 33, 44, 50, 28, "plain", (rows,)), down(middle, 72, 92)]
        shapes.append(Box(x, 94, width, 52, "worker", overlay))
        if checkpoint:
            shapes += [
                down(middle, 146, 192),
                Box(x, 194, width, 42, "store", (checkpoint, f"ann = {output}")),
                down(middle, 236, 272),
                Box(x + 20, 274, width - 40, 28, "plain", (f"ann {output}",)),
            ]
        elif rows:
            shapes += [
                Box(x, 160, width, 26, "bad", ("kill -9",)),
                Text(middle, 222, "nothing was committed", "small", "middle"),
            ]
        else:
            shapes.append(Arrow(((middle, 194), (middle, 148))))
    return Picture(
        316,
        "One key over three micro-batches. Each commits one object with what it changed. A kill before "
        "the commit of the third has no effect; a restart on other tasks replays the objects and repeats it.",
        shapes,
    )


def log_over_time() -> Picture:
    """Draw log and snapshots over time: retained checkpoints, a tag, a fork."""
    shapes: list[Shape] = [
        Text(8, 58, "checkpoints", "small"),
        Text(8, 112, "log", "small"),
        Text(8, 162, "snapshots", "small"),
        Text(8, 242, "a fork", "small"),
    ]
    for number in range(1, 11):
        x = 110 + (number - 1) * 66
        retained = number >= 8
        tagged = number == 4
        kind = "driver" if retained or tagged else "faded"
        shapes.append(Box(x, 40, 50, 28, kind, (str(number),)))
        in_log = number >= 7 or number in (3, 4)
        shapes.append(Box(x, 94, 50, 28, "store" if in_log else "faded"))
    shapes += [
        Text(110 + 3 * 66 + 25, 28, "tag: before-release", "small", "middle"),
        Text(110 + 8 * 66 + 25, 28, "retained: can be restored", "small", "middle"),
        Box(110, 144, 116, 28, "worker", ("slices up to 2",)),
        Box(374, 144, 116, 28, "worker", ("slices up to 6",)),
        Text(503, 163, "the log before them is deleted", "small"),
        Arrow(((333, 68), (333, 82), (300, 82), (300, 238), (370, 238))),
    ]
    for number in range(5, 8):
        x = 374 + (number - 5) * 66
        shapes += [Box(x, 224, 50, 28, "driver", (str(number),))]
    shapes += [
        Text(578, 236, "reads the objects of checkpoint 4", "small"),
        Text(578, 252, "without a copy", "small"),
    ]
    return Picture(
        270,
        "Ten checkpoints over time. The last three are retained, and a tag keeps the fourth. Snapshots make "
        "the log before them unnecessary. A fork continues from the fourth checkpoint without a copy.",
        shapes,
    )


def deliveries() -> Picture:
    """Draw staged against direct delivery."""
    shapes: list[Shape] = []
    lanes = (
        (
            "staged (default)",
            [
                ("tasks run", "worker", "rows stay with the state"),
                ("commit", "store", "state and rows, one object"),
                ("sink", "plain", "gets the committed rows"),
            ],
            "killed after the commit: the same rows are delivered again",
        ),
        (
            "direct",
            [
                ("tasks run", "worker", "the sink reads them"),
                ("sink", "plain", "gets rows before the commit"),
                ("commit", "store", "the state"),
            ],
            "killed before the commit: the micro-batch runs again",
        ),
    )
    for number, (name, steps, note) in enumerate(lanes):
        y = 34 + number * 130
        shapes.append(Text(8, y + 4, name, "title"))
        for place, (title, kind, detail) in enumerate(steps):
            x = 8 + place * 262
            shapes.append(Box(x, y + 14, 230, 48, kind, (title, detail)))
            if place:
                shapes.append(across(y + 38, x - 32, x - 2))
        shapes.append(Text(8, y + 82, note, "small"))
    return Picture(
        262,
        "Staged delivery commits state and rows in one object, and then the sink gets the rows. With direct "
        "delivery the sink gets the rows while the tasks run, before the commit of the state.",
        shapes,
    )


def parts() -> Picture:
    """Draw where each part runs."""
    shapes: list[Shape] = [
        Box(8, 30, 236, 150, "faded"),
        Text(126, 22, "Spark driver", "title", "middle"),
        Box(24, 46, 204, 50, "plain", ("JVM", "plans, shuffles by key group")),
        Box(24, 114, 204, 50, "driver", ("engine, coordinator", "claims and commits")),
        Box(276, 30, 236, 150, "faded"),
        Text(394, 22, "executors", "title", "middle"),
        Box(292, 46, 204, 50, "worker", ("Python worker: task 1", "your processor, state cache")),
        Box(292, 114, 204, 50, "worker", ("Python worker: task 2", "your processor, state cache")),
        across(139, 230, 290),
        Text(260, 130, "spec", "small", "middle"),
        Arrow(((292, 152), (230, 152))),
        Text(260, 168, "ack", "small", "middle"),
        Box(
            8,
            230,
            504,
            64,
            "store",
            (
                "state location",
                "claims and checkpoints (chk-*), with small changes in them",
                "files of large changes; snapshots (Parquet)",
            ),
        ),
        down(126, 180, 228),
        Text(132, 210, "one put", "small"),
        down(394, 180, 228),
        Text(400, 210, "large changes", "small"),
        Box(560, 46, 212, 50, "plain", ("your sink", "committed rows")),
        Arrow(((514, 71), (558, 71))),
        Box(
            560,
            230,
            212,
            64,
            "plain",
            ("readers", "statelog, sl.open, spark.read", "do not contact the query"),
        ),
        Arrow(((514, 262), (558, 262))),
    ]
    return Picture(
        310,
        "The driver claims and commits, the Python workers run the processor over a cache of the state, and the "
        "state location holds the truth. Readers use the location alone.",
        shapes,
    )


PICTURES = {
    "key-over-batches.svg": key_over_batches,
    "log-over-time.svg": log_over_time,
    "deliveries.svg": deliveries,
    "parts.svg": parts,
}


def main(arguments: list[str]) -> int:
    """Write the pictures, or compare them; returns 1 if one is out of date."""
    stale = []
    for name, picture in PICTURES.items():
        path = IMAGES / name
        text = picture().svg()
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    if stale:
        sys.stderr.write(f"out of date: {', '.join(stale)}; run python tools/pictures.py\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
