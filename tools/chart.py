"""
Draw docs/images/throughput.svg from the measured results in bench/results.

`python tools/chart.py` writes it; with `--check` it only reports whether it is up to date.
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
CHART = ROOT / "docs" / "images" / "throughput.svg"

GROUPS = (
    (
        "Rows",
        "pipeline.json",
        (
            ("Spark transformWithState", "spark"),
            ("statelog, staged", "statelog-staged"),
            ("statelog, direct", "statelog-direct"),
        ),
    ),
    (
        "pandas",
        "pipeline-pandas.json",
        (
            ("Spark transformWithStateInPandas", "spark-pandas"),
            ("statelog, staged", "statelog-pandas-staged"),
            ("statelog, direct", "statelog-pandas-direct"),
        ),
    ),
)
WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 760, 310, 110, 22, 8, 44
SPARK_FILL, STATELOG_FILL = "#9aa4b2", "#1f6feb"
TEXT = 'font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif" fill="#57606a"'


def measured() -> list[tuple[str, list[tuple[str, int, str]]]]:
    """Return the groups with the label, events per second and ratio of each bar."""
    groups = []
    for title, file, rows in GROUPS:
        table: dict[str, Any] = json.loads((RESULTS / file).read_text(encoding="utf-8"))["table"]
        bars = [
            (label, table[key]["events_per_s_median"], table[key]["ratio_to_spark"])
            for label, key in rows
        ]
        groups.append((title, bars))
    return groups


def origin() -> str:
    """Return machine and workload of the results, as the footnote says them."""
    found: dict[str, Any] = json.loads((RESULTS / GROUPS[0][1]).read_text(encoding="utf-8"))
    machine, arguments = found["machine"], found["arguments"]
    return (
        f"Median of {arguments['rounds']} x {arguments['batches'] - 1} micro-batches of "
        f"{arguments['events']:,} events; {machine['cores']} cores of an {machine['cpu'][0]}, "
        f"Python {machine['python']}. bench/pipeline.py"
    )


def chart() -> str:
    """Return the chart as SVG."""
    groups = measured()
    longest = max(value for _, bars in groups for _, value, _ in bars)
    parts: list[str] = []
    y = TOP
    for title, bars in groups:
        parts.append(
            f'<text x="16" y="{y + 15}" {TEXT} font-size="13" font-weight="600">{title}</text>'
        )
        for label, value, ratio in bars:
            width = max(1, round((WIDTH - LEFT - RIGHT) * value / longest))
            fill = SPARK_FILL if label.startswith("Spark") else STATELOG_FILL
            shown = f"{value:,}" if label.startswith("Spark") else f"{value:,}  ({ratio})"
            parts.append(
                f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end" {TEXT} font-size="12">{label}</text>'
                f'<rect x="{LEFT}" y="{y}" width="{width}" height="{BAR}" rx="3" fill="{fill}"/>'
                f'<text x="{LEFT + width + 6}" y="{y + 15}" {TEXT} font-size="12">{shown}</text>'
            )
            y += BAR + GAP
        y += GAP
    height = y + 26
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img">',
            f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>',
            "<title>Events per second of the same processor over the same input</title>",
            f'<text x="16" y="24" {TEXT} font-size="14" font-weight="600">Events per second: '
            "the same processor over the same input</text>",
            *parts,
            f'<text x="16" y="{height - 12}" {TEXT} font-size="11">{origin()}</text>',
            "</svg>",
            "",
        ]
    )


def main(arguments: list[str]) -> int:
    """Write the chart, or compare it; returns 1 if it is out of date."""
    text = chart()
    if CHART.exists() and CHART.read_text(encoding="utf-8") == text:
        return 0
    if "--check" in arguments:
        sys.stderr.write("docs/images/throughput.svg is out of date; run python tools/chart.py\n")
        return 1
    CHART.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
