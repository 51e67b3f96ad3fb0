"""The blocks of the benchmarks that have a script of their own: library, restarts, reading, memory."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from bench.harness.blocks.source import Block, Document, Source, number, table, with_range
from bench.harness.figures import Spread


def _from(name: str, command: str, document: Document) -> str:
    """Return the line about where the figures are from, for results of these scripts."""
    machine = document.get("machine", "")
    if isinstance(machine, dict):
        cpu = machine.get("cpu", "")
        cpu = ", ".join(cpu) if isinstance(cpu, list) else cpu
        cores = machine.get("cores", machine.get("cpus", "?"))
        load = machine.get("load_average") or machine.get("load", "")
        load = f"{load[0]:.1f}" if isinstance(load, list) else str(load).split(" ")[0]
        machine = f"{cores} cores, {cpu}; Python {machine.get('python', '?')}"
        machine += f"; load {load}" if load else ""
    origin = f"; commit {document['commit']}; {document['day']}" if "commit" in document else ""
    return f"`{command}`; `bench/results/{name}.json`; {machine}{origin}."


def _of(values: list[float], unit: str = "") -> list[str]:
    spread = Spread.of(values)
    return [f"{number(spread.median)}{unit}", f"{number(min(values))} to {number(max(values))}"]


def _stored(entry: dict[str, float], factor: float = 1.0) -> list[str]:
    return [
        number(entry["median"] * factor),
        f"{number(entry['min'] * factor)} to {number(entry['max'] * factor)}",
    ]


def read_state(source: Source) -> str:
    """Return the times of reads and forks."""
    read, fork = source.document("read_state"), source.document("fork")
    frame, feed = read["frame_seconds"], read["changes_per_second"]
    million = f"{read['keys'] / 1e6:g} million keys"
    rows = [
        ["all columns as a frame, summed, s", *_stored(frame["statelog"])],
        ["the same columns from Parquet, alternately, s", *_stored(frame["parquet"])],
        ["`statelog.open` and `get` of one key, ms", *_stored(read["get_seconds"], 1000)],
        ["change feed in Python, million changes/s", *_stored(feed["feed"], 1e-6)],
        ["change feed through Spark, million changes/s", *_stored(feed["feed_spark"], 1e-6)],
        [f"`statelog.fork`, {million}, ms", *_of(fork["milliseconds"]["large"])],
        ["`statelog.fork`, 1,000 keys, ms", *_of(fork["milliseconds"]["small"])],
    ]
    origin = _from("read_state", "bench/read_state.py", read)
    forks = _from("fork", "bench/fork.py", fork)
    ratio = f"Reading the frame takes {frame['ratio']:.2f} times as long as reading Parquet."
    return "\n".join([table(["", "median", "range"], rows), "", f"{ratio} {origin} {forks}"])


def publish(source: Source) -> str:
    """Return how long publications of one location took."""
    documents = {kind: source.document(f"publish-{kind}") for kind in ("iceberg", "delta")}
    arguments = documents["iceberg"]["arguments"]
    names = {
        "first": "the first publication",
        "next": f"the next checkpoint, {arguments['changed']:,} keys changed",
        "again": "another process, no new checkpoint",
        "restart": "another process, one checkpoint later",
    }
    rows = []
    for name, title in names.items():
        cells = [_of(document["seconds"][name]) for document in documents.values()]
        rows.append([title, *(f"{median} ({spread})" for median, spread in cells)])
    written = [statistics.median(each["written_rows"]) for each in documents.values()]
    rows.append(["rows written for the next checkpoint", *map(number, written)])
    said = f"{arguments['keys']:,} keys in 64 snapshots, {arguments['rounds']} checkpoints after the first."
    origins = [
        _from(f"publish-{kind}", f"bench/publish.py --table {kind}", document)
        for kind, document in documents.items()
    ]
    heads = ["seconds", "Iceberg", "Delta"]
    return "\n".join([table(heads, rows), "", " ".join([said, *origins])])


def record(source: Source) -> str:
    """Return what recording costs a task."""
    document = source.document("record")
    rows = document["task"]["rows"]
    low, high = rows["ratio_quartiles"]
    lines = [
        ["without recording", number(rows["cpu_ms_median_plain"]), rows["cpu_ms_best_plain"], ""],
        [
            "`share=0.001`",
            number(rows["cpu_ms_median_record"]),
            rows["cpu_ms_best_record"],
            f"{rows['ratio_median']:.3f} ({low:.3f} to {high:.3f})",
        ],
    ]
    said = (
        f"{rows['pairs']} pairs; {rows['keys']:,} keys, {rows['recorded_keys']} recorded in "
        f"{rows['recording_bytes']:,} bytes before compression."
    )
    if by_clock := document.get("micro_batches_by_the_clock"):
        own = by_clock["rows"]
        low, high = own["ratio_quartiles"]
        said += (
            f" Whole micro-batches ({own['micro_batches']} without and {own['micro_batches']} with recording) took "
            f"{own['ms_median_plain']:.0f} ms without it and {own['ms_median_record']:.0f} ms with it (wall-clock time), "
            f"with a median ratio of {own['ratio_median']:.3f} ({low:.3f} to {high:.3f}); `{by_clock['command']}`."
        )
    heads = ["", "ms of CPU, median", "best", "ratio of pairs (quartiles)"]
    command = "bench/record.py --task --pairs 25 --flavours rows"
    return "\n".join([table(heads, lines), "", f"{said} {_from('record', command, document)}"])


_ENCRYPTED = {
    "staged": "micro-batch, staged, ms",
    "direct": "micro-batch, direct, ms",
    "restart": "restart, s",
}


def encryption(source: Source) -> str:
    """Return what encryption costs, and how far the rounds of the same way are apart."""
    document = source.document("encryption")
    seconds = document["restart_s"]
    rounds = len(seconds["plain"])
    cases = {**document["batch_ms"], "restart": seconds}
    rows = []
    for name, ways in cases.items():
        plain, encrypted = (_round_medians(ways[way], rounds) for way in ("plain", "encrypted"))
        pairs = [one / other for one, other in zip(encrypted, plain, strict=True)]
        rows.append(
            [
                _ENCRYPTED[name],
                *(
                    f"{number(statistics.median(ways[way]))} ({number(min(each))} to {number(max(each))})"
                    for way, each in (("plain", plain), ("encrypted", encrypted))
                ),
                f"{document['ratios'][name]:.3f} ({min(pairs):.3f} to {max(pairs):.3f})",
            ]
        )
    batches = len(document["batch_ms"]["staged"]["plain"]) // rounds
    said = (
        f"Each of the {rounds} rounds ran {batches} micro-batches of {document['events']:,} events and one "
        f"restart with {document['keys'] / 1e6:g} million keys; brackets show the lowest and the highest round."
    )
    heads = ["", "plain (rounds)", "encrypted (rounds)", "encrypted to plain (rounds)"]
    origin = _from("encryption", "bench/encryption.py", document)
    return "\n".join([table(heads, rows), "", f"{said} {origin}"])


_WAITING = {
    "staged": "micro-batch of 50 rows, staged",
    "direct": "micro-batch of 50 rows, direct",
    "restore": "claim and restore",
    "get": "`statelog.open`, `variables()` and `get` of one key",
    "checkpoints": "`statelog.open` and `checkpoints()`",
}


def latency(source: Source) -> str:
    """Return the times on a store whose requests take a given time."""
    document = source.document("latency")
    rows = []
    for name, what in _WAITING.items():
        cases = [document["cases"][f"{name}-{each}"] for each in document["latencies_ms"]]
        rows.append([what, *(f"{number(each['p50'])} ({number(each['p99'])})" for each in cases)])
    heads = ["ms: median (99th percentile)", *(f"{each} ms" for each in document["latencies_ms"])]
    counts = [document["cases"][f"{name}-0"]["count"] for name in ("staged", "get")]
    said = f"The table covers {counts[0]} micro-batches, {counts[1]} restarts and {counts[1]} reads of each kind (for restarts and reads, brackets show the maximum)."
    origin = _from("latency", "bench/latency.py", document)
    return "\n".join([table(heads, rows), "", f"{said} {origin}"])


def visible(source: Source) -> str:
    """Return how long an event takes until the sink has its result."""
    document = source.document("visible")
    rows = []
    for case in document["cases"].values():
        runs = " and ".join(number(each) for each in case["p50_of_runs"])
        times = [number(case[name]) for name in ("p50", "p99", "p999")]
        rows.append([case["title"], *times, runs, number(case["batch_ms"]), f"{case['rows']:,}"])
    heads = ["ms", "p50", "p99", "p99.9", "p50 of each run", "micro-batch, median", "rows"]
    said = (
        f"{document['rate']:,} events a second, {document['keys']:,} keys, {document['rounds']} runs of "
        f"{document['seconds']:g} s, alternating."
    )
    origin = _from("visible", "bench/visible.py", document)
    return "\n".join([table(heads, rows), "", f"{said} {origin}"])


def _round_medians(values: list[float], rounds: int) -> list[float]:
    """Return the median of each round; the values are in the order of the rounds."""
    size = len(values) // rounds
    return [statistics.median(values[at : at + size]) for at in range(0, size * rounds, size)]


_PHASES = {
    "input": "take the rows from Spark and group them",
    "process": "call the processor",
    "processor_alone": "of it the processor itself",
    "append": "encode and write the changes",
    "output": "convert the output rows",
    "total": "**the whole task**",
}


def task(source: Source) -> str:
    """Return the CPU time of one task by phase, and what the processor itself takes."""
    document = source.document("task-1m")
    spreads = {name: Spread.of(document["phases"][name]) for name in _PHASES}
    whole = spreads["total"].median
    rows = [
        [what, *_of(document["phases"][name]), f"{spreads[name].median / whole:.0%}"]
        for name, what in _PHASES.items()
    ]
    heads = ["", "ms of CPU, median", "range", "of the task"]
    arguments = document["arguments"]
    command = f"bench/task.py --events {arguments['events']} --batches {arguments['batches']}"
    return "\n".join([table(heads, rows), "", _from("task-1m", command, document)])


def connect(source: Source) -> str:
    """Return small micro-batches in a classic session and on Connect."""
    document = source.document("connect")
    rows = []
    for name, row in document["table"].items():
        low, high = row["ms_quartiles"]
        rows.append(
            [
                name,
                f"{row['ms_median']:,} ({low} to {high}; best {row['ms_best']})",
                f"{statistics.median(row['first_ms']):,.0f}",
                f"{statistics.median(row['start_s']):.2f}",
            ]
        )
    heads = ["", "ms per micro-batch (quartiles)", "first micro-batch, ms", "`start()`, s"]
    origin = _from("connect", "bench/connect.py", document)
    return "\n".join([table(heads, rows), "", origin])


_RESTARTS = {
    "spark": "Spark, RocksDB provider, 4 partitions",
    "statelog-cold": "statelog, no files on the host",
    "statelog-local": "statelog, files on the host",
}


def restart(name: str, command: str, source: Source) -> str:
    """Return the first micro-batch after a restart."""
    document = source.document(name)
    rows = [
        [_RESTARTS[key], *_of(seconds), f"{document['memory_mib'][key]['RssAnon']}"]
        for key, seconds in document["first_batch_s"].items()
    ]
    built = " and ".join(
        f"{seconds:g} s on {key.replace('spark', 'Spark')}"
        for key, seconds in document["built_s"].items()
    )
    peak = document["memory_while_built_mib"]["RssAnon"]
    said = (
        f"{document['keys'] / 1e6:g} million keys. Writing them took {built}. The largest "
        f"worker used {peak} MiB of anonymous memory."
    )
    heads = ["", "first micro-batch, s", "rounds", "largest worker, MiB"]
    return "\n".join([table(heads, rows), "", f"{said} {_from(name, command, document)}"])


def large_batch(source: Source) -> str:
    """Return one micro-batch that exceeds the memory, beside ten."""
    document = source.document("large_batch")
    titles = {"one": "all rows in one micro-batch", "ten": "the same rows in ten micro-batches"}
    rows = []
    for key, runs in document["results"].items():
        seconds = [run["seconds"] for run in runs]
        memory = max(run["memory_mib"]["RssAnon"] for run in runs)
        rows.append([titles[key], number(statistics.median(seconds)), f"{memory}", len(runs)])
    said = (
        f"{document['rows'] / 1e6:g} million rows, {document['keys'] / 1e6:g} million keys, "
        f"`memoryBudget` {document['budget']}, {document['delivery']} delivery."
    )
    heads = ["", "seconds", "anonymous memory of the larger worker, MiB", "runs"]
    origin = _from("large_batch", "bench/large_batch.py", document)
    return "\n".join([table(heads, rows), "", f"{said} {origin}"])


def verify(source: Source) -> str:
    """Return the time and memory of a check of a whole location."""
    document = source.document("verify")
    rows = []
    for one in document["results"]:
        seconds = one["seconds"]
        rows.append(
            [
                f"{one['objects']:,}",
                number(one["mib"]),
                f"{number(seconds['median'])} ({number(seconds['min'])} to {number(seconds['max'])})",
                number(one["peak_mib"]["median"]),
            ]
        )
    heads = ["objects", "MiB read", "seconds (range)", "additional memory, MiB"]
    origin = _from("verify", "bench/verify.py", document)
    return "\n".join([table(heads, rows), "", origin])


Case = dict[str, Any]


def changelog(rows: list[tuple[str, str, str | None]], unit: str, source: Source) -> str:
    """
    Return cases of the changelog beside Flink's.

    Args:
        rows: Title, case of `changelog.json`, key of `flink.json` (None: not measured there).
        unit: Of all of them.
        source: The results.
    """
    document, flink = source.document("changelog"), source.document("flink")
    cases: dict[str, Case] = {one["case"]: one for one in document["results"]}
    lines = []
    for title, case, key in rows:
        own = cases[case]
        synced = cases.get(case.replace("no fsync", "fsync"))
        with_sync = "" if synced is None or synced is own else number(synced["median"])
        lines.append(
            [
                title,
                f"{number(own['median'])} ({number(own['lowest'])} to {number(own['highest'])})",
                with_sync,
                "" if key is None else _flinks(flink["cases"], key),
            ]
        )
    heads = ["", f"statelog, {unit}", "with fsync", f"Flink {flink['version']}, {unit}"]
    origin = _from("changelog", 'make bench ARGS="--only changelog"', document)
    note = f"Flink, with a heap of {flink['heap']}: "
    note += _from("flink", "python -m bench.elsewhere.flink_changelog", flink)
    return "\n".join([table(heads, lines), "", f"{origin} {note}"])


def _flinks(cases: dict[str, list[float]], key: str) -> str:
    """Return Flink's figure of a case, and the one without its delay before an upload."""
    figure = with_range(Spread.of(cases[key]))
    if (fast := cases.get(f"no-delay-{key}")) is None:
        return figure
    return f"{figure}; {number(statistics.median(fast))} without its delay of 10 ms"


_PERSIST = "persist 1000 x 100 B, no fsync, "
_WRITE = [
    ("100 B, in batches", "append_batch+persist 100 B / 100k, plain, no fsync", "write-100"),
    ("1 KiB, in batches", "append_batch+persist 1 KiB / 50k, plain, no fsync", "write-1k"),
    ("100 B, one by one", "append one by one+persist 100 B / 100k", "write-100"),
]
_SMALL = [
    ("persist of 1,000 changes, p50", f"{_PERSIST}p50", "persist-p50"),
    ("persist of 1,000 changes, p99", f"{_PERSIST}p99", "persist-p99"),
    ("16 writers persist at once", "16 writers persist at once, no fsync, p50", "persist-16"),
]
_READ = [
    ("100 B, in batches, plain", "read in batches 100 B, plain", "read-plain"),
    ("100 B, in batches, Snappy", "read in batches 100 B, snappy", "read-snappy"),
    ("100 B, one by one, plain", "read one by one 100 B, plain", "read-plain"),
]


BLOCKS: dict[str, Block] = {
    "read-state": read_state,
    "publish": publish,
    "record": record,
    "encryption": encryption,
    "latency": latency,
    "visible": visible,
    "connect": connect,
    "task": task,
    "restart-tws": partial(restart, "restart-tws", "bench/restart.py --spark tws --rounds 2"),
    "restart": partial(restart, "restart", "bench/restart.py --rounds 3"),
    "large-batch": large_batch,
    "verify": verify,
    "changelog-write": partial(changelog, _WRITE, "million changes/s"),
    "changelog-persist": partial(changelog, _SMALL, "ms"),
    "changelog-read": partial(changelog, _READ, "million changes/s"),
}
