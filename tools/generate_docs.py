"""
Write docs/options.md and docs/metrics.md from the tables in the code.

`python tools/generate_docs.py` writes them; with `--check` it only reports whether they are up to
date, for a test.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from statelog.metrics import METRICS
from statelog.options.sections import default_of
from statelog.options.table import FOREIGN, OPTIONS, SECTIONS, OptionKind, OptionSpec
from statelog.options.units import describe, describe_size

DOCS = Path(__file__).resolve().parent.parent / "docs"

OPTIONS_HEAD = """\
# Options

Made by `tools/generate_docs.py` from the table in `statelog/options/table.py`; do not edit.

Every option can be set in five places. Precedence, highest first:

1. **The code:** `ChangelogOptions(upload_max_attempts=5)`, or `load_options({"changelog.upload.max-attempts": 5})`.
2. **Spark's configuration:** `spark.statelog.` before the key: `spark.statelog.changelog.upload.max-attempts=5`.
3. **The environment:** `STATELOG_` before the key in capitals, `.` and `-` as `_`: `STATELOG_CHANGELOG_UPLOAD_MAX_ATTEMPTS=5`.
4. **A YAML file,** nested or flat, with or without a root `statelog` (needs the extra `cli`).
5. **The default.**

```python
import statelog as sl

conf = spark.sparkContext.getConf().getAll()
options = sl.load_options(spark_conf=conf, yaml_file="statelog.yaml")
storage = sl.FsStateChangelogStorage.from_options(options, "s3://bucket/log")
factory = sl.FsCheckpointStreamFactory.from_options(storage.store, 1, options.stream)
```

On Spark the sections `checkpoint` and `snapshot` apply; a key of another section is reported with a warning.

Flink's keys, deprecated ones included, are accepted in all these places. An unknown key is refused, with the nearest known
one; so are a key that is set twice in one place and values that contradict each other. Each error names the place of the
value.

Sizes are numbers of bytes, or text with binary units: `5 mb` is 5 * 1024 * 1024. Durations are `10 ms`, `2 s`, `5 min`,
`PT0.01S`; a bare number means milliseconds. Switches are `true` or `false`; paths are separated by commas.

The option classes take values, not text: a `datetime.timedelta`, a `bool`, a whole number. `ChangelogOptions(batch_persist_delay=5)`,
`compression_enabled="no"` and `upload_max_attempts=2.5` are refused; `ChangelogOptions.from_mapping` and `load_options` read text.
"""

FOREIGN_HEAD = """\
## Keys of Flink without an option here

Accepted, so that a Flink configuration can be used unchanged. Where only one value is possible, another one is refused.

| Key | Value | Why |
|---|---|---|
"""

METRICS_HEAD = """\
# Metrics

Made by `tools/generate_docs.py` from the table in `statelog/metrics/table.py`; do not edit.

`storage.metrics.snapshot()` returns the value of each by its name. A histogram keeps the last 1000 values. Prometheus and
OpenTelemetry export the same values:

```python
from statelog.exporters import PrometheusCollector, register_opentelemetry

prometheus_client.REGISTRY.register(PrometheusCollector(storage.metrics))  # statelog[metrics]
register_opentelemetry(storage.metrics, meter)  # statelog[otel]
```

Prometheus names begin with `statelog_` and end in the unit (a counter in `_total`); a histogram is a summary. OpenTelemetry
names begin with `statelog.`; a histogram becomes a gauge with the attribute `quantile`, and two counters that end in `.count`
and `.sum`. Quantiles cover the values kept, count and sum cover all values. Durations are exported in seconds.

The metrics of snapshots (Flink: materialization) and of checkpoints are recorded on the driver:
`transform_with_state(..., metrics=...)`, or a `CheckpointRecorder` passed to the `CheckpointCoordinator`.

"""


def options_page() -> str:
    """Return docs/options.md."""
    parts = [OPTIONS_HEAD]
    for section in SECTIONS:
        specs = [spec for spec in OPTIONS if spec.section == section]
        parts.append(f"\n## `{section}`\n\n| Key | Kind | Default | Meaning |\n|---|---|---|---|\n")
        parts += [
            f"| `{spec.key}` | {spec.kind.value} | {default_text(spec)} | {meaning(spec)} |\n"
            for spec in specs
        ]
        with_flink = [spec for spec in specs if spec.flink_keys]
        if with_flink:
            parts.append("\n| Key | Flink's key | Deprecated ones |\n|---|---|---|\n")
            parts += [
                f"| `{spec.key}` | `{spec.flink_keys[0]}` | {keys(spec.flink_keys[1:])} |\n"
                for spec in with_flink
            ]
    parts.append("\n" + FOREIGN_HEAD)
    parts += [
        f"| {keys(each.keys)} | {'any' if each.allowed is None else describe(each.allowed)} | "
        f"{each.reason} |\n"
        for each in FOREIGN
    ]
    return "".join(parts)


def default_text(spec: OptionSpec) -> str:
    """Return the default as text for a setting."""
    value = default_of(spec)
    return describe_size(value) if spec.kind is OptionKind.SIZE else describe(value)


def meaning(spec: OptionSpec) -> str:
    """Return the description, and whether the option has an effect."""
    return spec.description if spec.effect else f"{spec.description} Without effect."


def keys(names: Iterable[str]) -> str:
    """Return keys, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def metrics_page() -> str:
    """Return docs/metrics.md."""
    rows = [
        f"| `{spec.name}` | {spec.kind.value} | {spec.unit} | "
        f"{f'`{spec.flink_name}`' if spec.flink_name else ''} | {spec.description} |\n"
        for spec in METRICS.values()
    ]
    head = "| Name | Kind | Unit | In Flink | Meaning |\n|---|---|---|---|---|\n"
    return METRICS_HEAD + head + "".join(rows)


PAGES = {"options.md": options_page, "metrics.md": metrics_page}


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them; return 1 if one is out of date."""
    stale = []
    for name, page in PAGES.items():
        path = DOCS / name
        if not path.exists() or path.read_text(encoding="utf-8") != page():
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(page(), encoding="utf-8")
    if stale and "--check" in arguments:
        sys.stderr.write(f"out of date: {', '.join(stale)}; run python tools/generate_docs.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
