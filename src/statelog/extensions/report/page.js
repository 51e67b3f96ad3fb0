"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  root.classList.add("scripted");

  // Colours: the choice is kept where the browser allows it, which it may not for local files.
  const keep = (value) => { try { localStorage.setItem("statelog-theme", value); } catch { /* not kept */ } };
  const kept = () => { try { return localStorage.getItem("statelog-theme"); } catch { return null; } };
  const paint = (theme) => {
    if (theme === "auto") root.removeAttribute("data-theme");
    else root.setAttribute("data-theme", theme);
  };
  for (const choice of document.querySelectorAll("input[name=theme]")) {
    if (choice.value === kept()) { choice.checked = true; paint(choice.value); }
    choice.addEventListener("change", () => { paint(choice.value); keep(choice.value); });
  }

  // Charts: a line follows pointer and arrow keys, and the words below say the values of the table.
  for (const chart of document.querySelectorAll(".chart")) {
    const heads = [...chart.querySelectorAll("thead th")].map((cell) => cell.textContent);
    const rows = [...chart.querySelectorAll("tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent));
    if (!rows.length) continue;
    const readout = chart.querySelector(".readout");
    const words = (at) => rows[at].map((text, column) => `${heads[column]} ${text}`).join(" · ");
    const cursor = document.createElement("div");
    let at = rows.length - 1;
    const show = (to) => {
      at = Math.min(Math.max(to, 0), rows.length - 1);
      cursor.style.setProperty("--at", `${((at + 0.5) / rows.length) * 100}%`);
      cursor.setAttribute("aria-valuenow", String(at + 1));
      cursor.setAttribute("aria-valuetext", words(at));
      readout.textContent = words(at);
    };
    const facts = {
      class: "cursor", role: "slider", tabindex: "0", "aria-valuemin": "1", "aria-valuemax": String(rows.length),
      "aria-label": `Values of the chart ${chart.querySelector("h3").textContent}`,
    };
    for (const [name, value] of Object.entries(facts)) cursor.setAttribute(name, value);
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };
    cursor.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      if (event.key in steps) show(at + steps[event.key]);
      else if (event.key === "Home") show(0);
      else if (event.key === "End") show(rows.length - 1);
      else return;
      event.preventDefault();
    });
    const point = (event) => {
      const box = cursor.getBoundingClientRect();
      show(Math.floor(((event.clientX - box.left) / box.width) * rows.length));
    };
    cursor.addEventListener("pointermove", point);
    cursor.addEventListener("pointerdown", point);
    chart.querySelector(".canvas").append(cursor);
    show(at);
  }

  // Estimates: the formulas of report/restart.py and report/bill.py, with the values of the fields.
  const field = (id) => {
    const element = document.getElementById(id);
    const value = element && element.value !== "" ? Number(element.value) : NaN;
    return value >= 0 ? value : NaN;
  };
  const number = (value, digits) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const duration = (ms) => {
    if (!Number.isFinite(ms)) return "–";
    if (ms < 999.5) return `${number(ms, 0)} ms`;
    if (ms < 59950) return `${number(ms / 1000, 1)} s`;
    const seconds = Math.round(ms / 1000);
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
    return `${number(Math.floor(seconds / 3600), 0)} h ${Math.floor((seconds % 3600) / 60)} min`;
  };
  const money = (dollars) => {
    if (!Number.isFinite(dollars)) return "–";
    if (dollars === 0) return "$0";
    return dollars < 0.01 ? "< $0.01" : `$${number(dollars, 2)}`;
  };
  const watch = (form, update) => {
    if (!form) return;
    form.addEventListener("input", update);
    form.addEventListener("submit", (event) => event.preventDefault());
  };
  watch(document.getElementById("speeds"), () => {
    const restart = figures.restart;
    const megabytes = restart.slowest_bytes / 1e6;
    const waits = ((restart.driver_requests + restart.slowest_requests) * field("latency")) / 1000;
    const seconds = waits + megabytes / field("read") + megabytes / field("restore");
    document.getElementById("restart-time").textContent = `about ${duration(seconds * 1000)}`;
  });
  watch(document.getElementById("prices"), () => {
    const bill = figures.bill;
    const batches = (30 * 24 * 3600) / field("seconds");
    // As bill.py: a clean-up lists once for 20 micro-batches, or once in 60 seconds.
    const lists = Math.min(1, Math.max(1 / 20, field("seconds") / 60));
    const requests = (batches * ((bill.puts_per_batch + lists) * field("puts") + bill.gets_per_batch * field("gets"))) / 1000;
    const storage = (bill.stored_bytes / 1e9) * field("storage");
    document.getElementById("bill-total").textContent = money(requests + storage);
    document.getElementById("bill-parts").textContent = `Requests ${money(requests)}, storage ${money(storage)}.`;
  });
})();
