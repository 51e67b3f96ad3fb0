"use strict";
(() => {
  const SHOWN_MAX = 400; // Checkpoints that charts and tables show, the newest ones; the JSON has all.
  const data = JSON.parse(document.getElementById("figures").textContent);
  for (const row of data.checkpoints) { // The figures of the micro-batch, next to what the checkpoint has.
    Object.assign(row, { milliseconds: {}, task_milliseconds: {}, extras: {}, ...row.figures, ...row });
  }
  const shown = data.checkpoints.filter((row) => row.created_at_ms !== null).slice(-SHOWN_MAX);
  const newest = data.checkpoints.find((row) => row.checkpoint_id === data.newest_id);

  // Elements: a name from the location becomes a text node or the value of an attribute, never markup.
  const fill = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children.flat(Infinity).filter((child) => child !== null));
    return node;
  };
  const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
  const svg = (name, attributes, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
  const get = (id) => document.getElementById(id);
  const put = (id, ...children) => fill(get(id), {}, children);

  // Numbers as people read them, in the forms of texts.py; null is not known.
  const text = (write) => (value) => (Number.isFinite(value) ? write(value) : "–");
  const digits = (value, places = 0) =>
    value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
  const count = text((value) => digits(value, value % 1 && Math.abs(value) < 100 ? 1 : 0));
  const size = text((value) => {
    if (value < 1024) return `${digits(value)} B`;
    let power = 0;
    for (value /= 1024; value >= 1023.95 && power < 3; value /= 1024) power += 1;
    return `${digits(value, 1)} ${["KiB", "MiB", "GiB", "TiB"][power]}`;
  });
  const duration = text((ms) => {
    if (ms < 999.5) return `${digits(ms)} ms`;
    if (ms < 59950) return `${digits(ms / 1000, 1)} s`;
    const seconds = Math.round(ms / 1000);
    const [minutes, hours] = [Math.floor(seconds / 60), Math.floor(seconds / 3600)];
    if (hours < 1) return `${minutes} min ${seconds % 60} s`;
    return hours < 48 ? `${hours} h ${minutes % 60} min` : `${digits(Math.floor(hours / 24))} d ${hours % 24} h`;
  });
  const money = text((dollars) => (dollars && dollars < 0.01 ? "< $0.01" : `$${digits(dollars, dollars && 2)}`));
  const price = text((dollars) => `$${Number(dollars.toFixed(6))}`);
  const percent = text((share) => `${digits(share * 100)} %`);
  const plural = (number, noun) => `${digits(number)} ${noun}${number === 1 ? "" : "s"}`;
  const moment = text((ms) => { // Or the number, if the calendar lacks the time.
    const parts = new Date(ms).toUTCString().match(/^\w+, 0?(\d+ \w+ \d+) (\S+) GMT$/);
    return parts ? `${parts[1]}, ${parts[2]} UTC` : `${ms} ms`;
  });

  const sum = (values) => values.filter(Number.isFinite).reduce((total, value) => (total ?? 0) + value, null);
  const highest = (values) => values.reduce((high, value) => (value > (high ?? -Infinity) ? value : high), null);
  const total = (rows, name) => sum(rows.map((row) => row[name]));
  const quantile = (values, share) => {
    const sorted = values.toSorted((low, high) => low - high);
    const at = (sorted.length - 1) * share;
    const low = sorted[Math.floor(at)];
    return low + (sorted[Math.ceil(at)] - low) * (at % 1);
  };

  /* A table that scrolls sideways where it is too wide; the columns in `words` begin at the left. */
  const table = (caption, heads, rows, words = [0]) => {
    const side = (at) => (words.includes(at) ? { class: "text" } : {});
    const cell = (content, at) => (at ? el("td", side(at), content) : el("th", { scope: "row", ...side(0) }, content));
    return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${caption}, table` }, el("table", {},
      el("caption", { class: "hidden" }, caption),
      el("thead", {}, el("tr", {}, heads.map((head, at) => el("th", { scope: "col", ...side(at) }, head)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell))))));
  };

  /* Return the top of a scale with four parts, which are whole numbers: of counts, or of bytes, KiB, MiB. */
  const scaleTop = (largest, isBytes) => {
    let unit = 1;
    while (isBytes && largest / unit > 1000) unit *= 1024;
    const value = Math.max(largest / unit, 1e-9);
    for (let power = 10 ** Math.max(Math.floor(Math.log10(value)), 0); ; power *= 10) {
      for (const step of [1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8]) {
        const top = Number((step * power).toPrecision(9));
        if (top >= value && (top % 4 === 0 || unit > 1)) return top * unit;
      }
    }
  };
  /* Stacked bars, stretched to the width of the page: so all words are outside of the drawing. */
  const bars = (series, places, top, label) => {
    const height = (value) => (100 - (100 * value) / top).toFixed(2);
    const shapes = [0, 25, 50, 75, 100].map((y) => svg("line", { x1: 0, x2: places, y1: y, y2: y, class: "grid" }));
    const sums = Array(places).fill(0);
    for (const [, values, tone] of series) {
      const path = values.map((value, at) => {
        const low = height(sums[at]);
        sums[at] += value ?? 0;
        return value ? `M${at + 0.08} ${height(sums[at])}h.84V${low}h-.84z` : "";
      });
      shapes.push(svg("path", { d: path.join(""), class: `shape tone-${tone}` }));
    }
    return svg("svg", { viewBox: `0 0 ${places} 100`, preserveAspectRatio: "none", role: "img", "aria-label": label }, shapes);
  };
  /* A line that follows pointer and arrow keys; the words below the chart say the values of the table. */
  const cursor = (title, heads, rows, readout) => {
    const line = el("div", {
      class: "cursor", role: "slider", tabindex: 0, "aria-valuemin": 1, "aria-valuemax": rows.length,
      "aria-label": `Values of the chart ${title}`,
    });
    let at = 0;
    const show = (to) => {
      at = Math.min(Math.max(to, 0), rows.length - 1);
      readout.textContent = rows[at].map((cell, column) => `${heads[column]} ${cell}`).join(" · ");
      line.style.setProperty("--at", `${((at + 0.5) / rows.length) * 100}%`);
      fill(line, { "aria-valuenow": at + 1, "aria-valuetext": readout.textContent }, []);
    };
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -1e9, End: 1e9 };
    line.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || !(event.key in steps)) return;
      show(at + steps[event.key]);
      event.preventDefault();
    });
    for (const type of ["pointermove", "pointerdown"]) {
      line.addEventListener(type, (event) => {
        const box = line.getBoundingClientRect();
        show(Math.floor(((event.clientX - box.left) / box.width) * rows.length));
      });
    }
    show(rows.length - 1);
    return line;
  };
  /* A chart of series [name, values, tone], with its words, and a table that has the columns `extra` too. */
  const chart = ({ id, title, note, show = count, head, labels, series, extra = [] }) => {
    const sums = labels.map((_, at) => sum(series.map(([, values]) => values[at])));
    const known = labels.flatMap((_, at) => (sums[at] === null ? [] : [at]));
    const largest = highest(sums);
    const summary = !known.length ? `${title}: no values are known.` :
      `${title}: ${known.length} values, from ${head.toLowerCase()} ${labels[0]} to ${labels.at(-1)}. The largest is ${show(largest)} at `
      + `${labels[sums.indexOf(largest)]}, the last ${show(sums[known.at(-1)])}. The table below has all values.`;
    const several = series.length > 1;
    const columns = [[head, labels], ...series.map(([name, values]) => [name, values.map(show)])];
    columns.push(...(several ? [["Total", sums.map(show)]] : []), ...extra);
    const heads = columns.map(([name]) => name);
    const rows = labels.map((_, at) => columns.map(([, texts]) => texts[at]));
    const top = scaleTop(largest ?? 0, show === size);
    const readout = el("p", { class: "readout" });
    const ends = [`${head} ${labels[0]}`, ...labels.slice(1).slice(-1)];
    const legend = series.map(([name, , tone]) => el("li", {}, el("span", { class: `swatch tone-${tone}` }), name));
    return el("figure", { class: "chart", id, "aria-labelledby": `${id}-title` },
      el("h3", { id: `${id}-title` }, title), el("p", { class: "note" }, note), several ? el("ul", { class: "legend" }, legend) : null,
      el("div", { class: "plot" },
        el("div", { class: "scale", "aria-hidden": true }, [4, 3, 2, 1, 0].map((part) =>
          el("span", {}, show((top * part) / 4).replace(".0 ", " ")))),
        el("div", { class: "canvas" }, bars(series, labels.length, top, summary), cursor(title, heads, rows, readout))),
      el("div", { class: "ends", "aria-hidden": true }, ends.map((end) => el("span", {}, end))), readout,
      el("details", {}, el("summary", {}, `Table: ${title}`), table(title, heads, rows)));
  };

  const column = (name, show = (value) => value) => shown.map((row) => show(row[name]));
  const phase = (name) => shown.map((row) => row.milliseconds[name] ?? null);
  const took = (row) => sum(Object.values(row.milliseconds));
  const history = (spec) => chart({ head: "Checkpoint", labels: column("checkpoint_id", String), ...spec });

  const head = () => {
    document.title = `State of ${data.location}`;
    const several = data.operators.length > 1 ? "operators" : "operator";
    const facts = [
      `made ${moment(data.made_at_ms)}`,
      ...(data.operators.length ? [`${several} ${data.operators.join(", ")}`, `${data.delivery} delivery`] : []),
      ...(data.key_groups === null ? [] : [plural(data.key_groups, "key group")]),
      ...(data.query_id ? [`query ${data.query_id}`] : []),
    ];
    put("location", data.location);
    put("facts", facts.map((fact) => el("span", {}, fact)));
    put("version", data.version);
  };
  const tiles = () => {
    const { restart, bill, stored } = data;
    const counted = shown.filter((row) => Number.isFinite(row.state_entries));
    const [first, last] = [counted[0], counted.at(-1)];
    const growth = counted.length > 1 ? last.state_entries / first.state_entries - 1 : NaN;
    const since = Number.isFinite(growth) ?
      `${growth < 0 ? "−" : "+"}${percent(Math.abs(growth))} since checkpoint ${first.checkpoint_id}` :
      last ? `as of checkpoint ${last.checkpoint_id}` : "";
    const share = newest.log_bytes / newest.full_snapshot_bytes;
    const times = shown.map(took).filter(Number.isFinite);
    return [
      ["State entries", count(newest.state_entries), since],
      ["Stored", size(total(stored, "size_bytes")), plural(total(stored, "objects"), "object")],
      ["Log to replay", size(newest.log_bytes), Number.isFinite(share) ? `${percent(share)} of the snapshots' size` : "no snapshot yet"],
      ...(times.length ? [["Median micro-batch", duration(quantile(times, 0.5)), `the longest ${duration(highest(times))}`]] : []),
      ["A restart reads", size(total(restart.parts, "size_bytes")),
        `${plural(total(restart.parts, "objects"), "object")}, about ${duration(restart.seconds * 1000)}`],
      ["Store, a month", money(bill.request_dollars === null ? null : bill.request_dollars + bill.storage_dollars),
        bill.seconds_per_batch === null ? "rate unknown" : `a micro-batch each ${duration(bill.seconds_per_batch * 1000)}`],
    ];
  };
  const overview = () => {
    const levels = { damage: "Damage", attention: "Attention", note: "Note" };
    const facts = newest && data.restart && data.bill ? tiles() : [];
    put("tiles", facts.map(([name, value, note]) => el("li", { class: "tile" },
      el("span", { class: "name" }, name), el("span", { class: "value" }, value), el("span", { class: "note" }, note))));
    put("findings", data.findings.map((finding) => el("li", { class: `finding ${finding.level}` },
      el("strong", {}, levels[finding.level]), el("span", {}, finding.text))));
    if (data.findings.length) return;
    const nothing = data.checkpoints.length ? "Nothing stands out." : "The location is claimed, but contains no checkpoint yet.";
    get("findings").replaceWith(el("p", { class: "card" }, nothing));
  };

  const state = () => put("state-charts",
    history({
      id: "entries", title: "State entries",
      note: "Values, list elements, map entries and timers before each micro-batch.",
      series: [["Entries", column("state_entries"), 1]],
      extra: [["Committed", column("created_at_ms", moment)]],
    }),
    history({
      id: "stored-state", title: "Snapshots, and the log after them", show: size,
      note: "What a restart from the checkpoint needs: stored bytes of snapshots, and bytes of changes after them. "
        + "A snapshot makes the log shorter.",
      series: [["Snapshots", column("full_snapshot_bytes"), 1], ["Log after them", column("log_bytes"), 2]],
      extra: [["Log handles", column("log_handles", count)], ["Committed", column("created_at_ms", moment)]],
    }));

  const PHASES = { plan: ["Plan", 5], run: ["Run tasks", 1], commit: ["Commit", 2], deliver: ["Deliver", 3], clean_up: ["Clean up", 4] };
  const batches = () => {
    const older = data.older_changes.filter(([number]) => number < shown[0].checkpoint_id);
    older.splice(0, older.length + shown.length - SHOWN_MAX);
    const after = (values) => [...older.map(() => null), ...values];
    const extras = [...new Set(shown.flatMap((row) => Object.keys(row.extras)))];
    const plurals = plural(older.length, "older checkpoint");
    put("batch-charts",
      history({
        id: "durations", title: "Duration by phase", show: duration,
        note: "On the driver. The phases after the commit are recorded by the next micro-batch of the run, so the newest one lacks them.",
        series: Object.entries(PHASES).map(([name, [words, tone]]) => [words, phase(name), tone]),
        extra: [["Micro-batch", column("batch_id", count)], ["Tasks", column("tasks", count)]],
      }),
      history({
        id: "bytes", title: "Bytes of each checkpoint", show: size,
        note: "Changes of state and staged rows before compression, and the snapshots that it wrote."
          + (older.length ? ` ${plurals} are no longer stored; the log behind the snapshots still has their changes.` : ""),
        labels: [...older.map(([number]) => String(number)), ...column("checkpoint_id", String)],
        series: [
          ["Changes", [...older.map(([, bytes]) => bytes), ...column("delta_bytes")], 1],
          ["Staged rows", after(column("output_bytes")), 3],
          ["Snapshots", after(column("snapshot_bytes")), 2],
        ],
      }),
      history({
        id: "objects", title: "Objects of each checkpoint",
        note: "Each is one put. The commit is one; large changes, large outputs and snapshots are objects of their own.",
        series: [["Objects", column("objects"), 1]],
        extra: [["Size of the commit", column("commit_bytes", size)]],
      }),
      history({
        id: "rows", title: "Input rows", note: "Rows of each micro-batch; the table has keys and output rows too.",
        series: [["Rows", column("rows"), 1]],
        extra: [
          ["Keys", column("keys", count)], ["Output rows", column("output_rows", count)],
          ...extras.map((name) => [name.replaceAll("_", " "), shown.map((row) => count(row.extras[name] ?? 0))]),
        ],
      }));
    phases();
    retries();
  };
  const phases = () => {
    const all = sum(shown.map(took));
    const row = (name, values, share) => (values.length ?
      [[name, duration(quantile(values, 0.5)), duration(quantile(values, 0.95)), share ? percent(sum(values) / all) : ""]] : []);
    const tasks = column("task_milliseconds").filter((times) => Object.keys(times).length);
    const order = ["catch_up", "input", "wait", "process", "output", "append", "snapshot", "stage"];
    const names = [...new Set([...order, ...tasks.flatMap(Object.keys).sort()])].filter((name) => tasks.some((times) => name in times));
    const inside = names.flatMap((name) =>
      row(el("span", { class: "inner" }, name.replaceAll("_", " ")), tasks.map((times) => times[name] ?? 0), false));
    const rows = Object.entries(PHASES).flatMap(([name, [words]]) =>
      [...row(words, phase(name).filter(Number.isFinite), true), ...(name === "run" ? inside : [])]);
    if (rows.length) put("phases", table("Where the time is spent", ["Phase", "Median", "95th percentile", "Share"], rows));
    else get("phases").remove();
  };
  const retries = () => {
    const names = ["task_retries", "put_retries", "uploads", "upload_retries"];
    const heads = ["Failed task attempts", "Repeated puts", "Uploads of tasks", "Repeated uploads"];
    const runs = Map.groupBy(shown, (row) => row.epoch ?? 0);
    put("runs", plural(runs.size, "run"));
    put("retries", table("Retries and restarts", ["Run", "Checkpoints", ...heads, "Bytes uploaded", "Slowest upload"],
      [...runs].map(([epoch, rows]) => [
        String(epoch), `${rows[0].checkpoint_id} to ${rows.at(-1).checkpoint_id}`, ...names.map((name) => count(total(rows, name))),
        size(total(rows, "upload_bytes")), duration(highest(rows.map((row) => row.slowest_upload_ms))),
      ])));
    const rows = shown.filter((row) => row.task_retries || row.put_retries || row.upload_retries);
    if (!rows.length) return;
    put("retries", el("details", {}, el("summary", {}, "Table: checkpoints with retries"), table("Checkpoints with retries",
      ["Checkpoint", ...heads], rows.map((row) => [String(row.checkpoint_id), ...names.map((name) => count(row[name]))]))));
  };

  const keyGroups = () => {
    const problem = data.skew_problem ? `Not counted: ${data.skew_problem}` : "There is no state of a query to count.";
    if (!data.skew.length) put("key-groups", el("p", { class: "card" }, problem));
    put("key-groups", data.skew.map(({ operator, keys, change_bytes: bytes }, at) => el("div", { class: "pair" },
      keys.length ? groups(`keys-${at}`, `Keys: ${operator}`, "keys", keys, count) : null,
      bytes.length ? groups(`changes-${at}`, `Changes in the log: ${operator}`, "bytes of changes", bytes, size) : null)));
  };
  const groups = (id, title, noun, counts, show) => {
    const largest = highest(counts);
    const times = digits((largest * counts.length) / sum(counts), 1);
    const spread = largest ? `Key group ${counts.indexOf(largest)} has the most ${noun}, ${show(largest)}: ${times} times the mean. `
      + `The median is ${show(quantile(counts, 0.5))}.` : `There are no ${noun}.`;
    const width = Math.ceil(counts.length / 256);
    const starts = [...counts.keys()].filter((group) => group % width === 0);
    return chart({
      id, title, show, head: "Key group",
      note: spread + (width > 1 ? ` Each bar is the largest of ${width} key groups.` : ""),
      labels: starts.map((group) => (width === 1 ? String(group) : `${group}–${group + width - 1}`)),
      series: [[noun[0].toUpperCase() + noun.slice(1), starts.map((group) => highest(counts.slice(group, group + width))), 1]],
    });
  };

  /* Fields that the reader changes: their first values, and what is called with their numbers. */
  const fields = (form, values, update) => {
    const inputs = [...get(form).querySelectorAll("input")];
    const number = ({ value }) => (value === "" || value < 0 ? NaN : Number(value));
    inputs.forEach((input, at) => {
      fill(input, { min: 0, step: "any", inputmode: "decimal", autocomplete: "off" }, []);
      input.value = values[at] ?? "";
    });
    get(form).addEventListener("input", () => update(...inputs.map(number)));
    get(form).addEventListener("submit", (event) => event.preventDefault());
  };
  const restart = () => {
    const facts = data.restart;
    const kinds = { snapshots: "Snapshots", log: "Log files", commits: "Commits, with log in them" };
    put("restart-from", `From checkpoint ${facts.checkpoint_id}`);
    put("restart-parts", table("What a restart reads", ["Objects", "Number", "Size"], [
      ...facts.parts.map((part) => [kinds[part.kind], count(part.objects), size(part.size_bytes)]),
      ["All", count(total(facts.parts, "objects")), size(total(facts.parts, "size_bytes"))],
    ]));
    put("restart-tasks", plural(facts.tasks, "task"));
    put("restart-requests", plural(facts.driver_requests + facts.task_requests, "request"));
    put("restart-changes", plural(facts.change_sets, "change set"));
    put("restart-slowest", `${plural(facts.slowest_requests, "object")}, ${size(facts.slowest_bytes)}`);
    const say = (seconds) => { get("restart-time").textContent = `about ${duration(seconds * 1000)}`; };
    say(facts.seconds ?? NaN);
    const { latency_ms: latency, read_mb_s: read, restore_mb_s: restore } = facts.speeds;
    fields("speeds", [latency, read, restore], (request, network, state) => { // As estimate_s in restart.py.
      const megabytes = facts.slowest_bytes / 1e6;
      const waits = ((facts.driver_requests + facts.slowest_requests) * request) / 1000;
      say(waits + megabytes / network + megabytes / state);
    });
  };
  const bill = () => {
    const { bill: facts, stored, price_lists: lists } = data;
    const say = (requests, storage) => {
      get("bill-total").textContent = money(requests + storage);
      get("bill-parts").textContent = `Requests ${money(requests)}, storage ${money(storage)}.`;
    };
    say(facts.request_dollars ?? NaN, facts.storage_dollars ?? NaN);
    if (facts.seconds_per_batch === null) {
      get("bill-parts").textContent = `Storage ${money(facts.storage_dollars)}. There are not two micro-batches of one run whose distance `
        + "would tell the rate: set the seconds below.";
    }
    put("bill-puts", count(facts.puts_per_batch));
    put("bill-lists", digits(facts.lists_per_batch, 2));
    const { puts_per_1000: puts, gets_per_1000: gets, gb_month: gigabyte } = facts.prices;
    const seconds = facts.seconds_per_batch === null ? null : Number(facts.seconds_per_batch.toFixed(2));
    fields("prices", [seconds, puts, gets, gigabyte], (interval, put, get, month) => { // As bill_of in bill.py.
      const number = (30 * 24 * 3600) / interval;
      const listings = Math.min(1, Math.max(1 / 20, interval / 60));
      const requests = (facts.puts_per_batch + listings) * put + facts.gets_per_batch * get;
      say((number * requests) / 1000, (facts.stored_bytes / 1e9) * month);
    });
    const kinds = {
      commits: "Commits and claims", log: "Log files", snapshots: "Snapshots", output: "Staged output", tags: "Tags", other: "Other",
    };
    const orphans = (row) => (row.orphans ? `${digits(row.orphans)} (${size(row.orphan_bytes)})` : "0");
    put("stored", table("What is stored now", ["Objects", "Number", "Size", "Orphans"],
      stored.map((row) => [kinds[row.kind], count(row.objects), size(row.size_bytes), orphans(row)])));
    const isUsed = (list) => JSON.stringify(list) === JSON.stringify(facts.prices);
    const listed = lists.some(isUsed) ? lists : [facts.prices, ...lists];
    put("price-lists", table("Price lists", ["Store", "1,000 puts", "1,000 gets", "GB-month", "Source", "Noted on"], listed.map((list) => [
      `${list.title}${isUsed(list) ? " (used)" : ""}`, price(list.puts_per_1000), price(list.gets_per_1000), price(list.gb_month),
      list.source, list.noted_on,
    ]), [0, 4, 5]));
  };

  const listing = () => {
    const number = (state) => data.checkpoints.filter((row) => row.state === state).length;
    put("retained", plural(number("retained"), "checkpoint"));
    if (number("subsumed")) {
      put("retention", ` ${plural(number("subsumed"), "older checkpoint")} cannot be restored; their files are kept because newer ones `
        + "need the changes in them.");
    }
    if (data.checkpoints.length > SHOWN_MAX) put("retention", ` The newest ${SHOWN_MAX} are shown.`);
    if (!data.checkpoints.length) return;
    const heads = ["Checkpoint", "State", "Committed", "Run", "Batch", "Rows", "Changes", "Commit", "Objects", "Snapshots", "Time"];
    put("listing", table("Checkpoints", heads, data.checkpoints.slice(-SHOWN_MAX).toReversed().map((row) => [
      String(row.checkpoint_id), el("span", { class: `state ${row.state}` }, row.state), moment(row.created_at_ms), count(row.epoch),
      count(row.batch_id), count(row.rows), size(row.delta_bytes), size(row.commit_bytes), count(row.objects), count(row.snapshots),
      duration(took(row)),
    ]), [0, 1, 2]));
  };

  // Colours: the choice is stored where the browser allows it, which it may not for local files.
  const colours = () => {
    const store = (theme) => { try { localStorage.setItem("statelog-theme", theme); } catch { /* not stored */ } };
    const stored = () => { try { return localStorage.getItem("statelog-theme"); } catch { return null; } };
    for (const choice of document.querySelectorAll("input[name=theme]")) {
      const paint = () => { document.documentElement.dataset.theme = choice.value; };
      choice.checked = choice.value === (stored() ?? "auto");
      if (choice.checked) paint();
      choice.addEventListener("change", () => { paint(); store(choice.value); });
    }
  };

  document.documentElement.classList.add("scripted");
  colours();
  head();
  overview();
  listing();
  const sections = {
    state: [shown.length, state], batches: [shown.length, batches], "key-groups": [shown.length, keyGroups],
    restart: [data.restart, restart], bill: [data.bill, bill],
  };
  for (const [id, [facts, draw]] of Object.entries(sections)) {
    if (facts) draw();
    else for (const gone of [get(id), document.querySelector(`nav a[href="#${id}"]`).parentNode]) gone.remove();
  }
})();
