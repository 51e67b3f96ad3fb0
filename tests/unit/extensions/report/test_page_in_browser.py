"""
The page in a real browser: what it draws, no errors, no requests, colours, width, keyboard, names.

Needs Chromium and its driver on the machine (Debian: `apt-get install chromium chromium-driver`);
without them the tests are skipped.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.locations.costly_history import NASTY, named
from tests.unit.extensions.report.support import EMPTY, NAMES, contrast

from statelog.extensions.report import Figures, page, texts
from statelog.extensions.report.figures import CheckpointFigures
from statelog.extensions.report.skew import KeyGroups
from statelog.metrics.table import BatchFigures

webdriver = pytest.importorskip("selenium.webdriver")
keys = pytest.importorskip("selenium.webdriver.common.keys").Keys

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
DRIVER = shutil.which("chromedriver") or ""
SWITCHES = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic",
    "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(
        not (BROWSER and DRIVER),
        reason="no Chromium here: apt-get install chromium chromium-driver",
    ),
    pytest.mark.xdist_group("browser"),
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for switch in (*SWITCHES, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(DRIVER))
    chrome.set_page_load_timeout(60)
    yield chrome
    chrome.quit()


Draw = Callable[[Figures], "Browser"]


class Browser:
    """A page that is open, in a window of some width and with the colours of some system."""

    def __init__(self, driver: Any, folder: Path, text: str) -> None:
        self.driver = driver
        self.url = (folder / "report.html").as_uri()
        (folder / "report.html").write_text(text, encoding="utf-8")
        self.open()

    def open(self, width: int = 1280, *, dark: bool = False, media: str = "") -> None:
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        emulated = {"media": media, "features": [scheme]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", emulated)
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get(self.url)

    def run(self, code: str, *arguments: object) -> Any:
        return self.driver.execute_script(code, *arguments)

    def press(self, *pressed: str) -> None:
        self.driver.switch_to.active_element.send_keys(*pressed)

    def values(self, selector: str, value: str) -> list[Any]:
        """Return the value of a JavaScript expression for each *element* of a selector."""
        code = f"return [...document.querySelectorAll(arguments[0])].map((element) => {value})"
        return list(self.run(code, selector))

    def matching(self, selector: str, condition: str) -> list[str]:
        """Return the elements of a selector for which a JavaScript expression is true."""
        code = (
            "return [...document.querySelectorAll(arguments[0])]"
            f".filter((element) => {condition}).map((element) => element.outerHTML.slice(0, 120))"
        )
        return list(self.run(code, selector))

    def texts(self, selector: str) -> list[str]:
        return self.values(selector, "element.textContent.toWellFormed()")

    def rows(self, selector: str) -> list[list[str]]:
        """Return the cells of a table, its head among them."""
        return self.values(f"{selector} tr", "[...element.cells].map((cell) => cell.textContent)")

    def requests(self) -> list[str]:
        log = self.driver.get_log("performance")
        messages = [json.loads(entry["message"])["message"] for entry in log]
        sent = [entry for entry in messages if entry["method"] == "Network.requestWillBeSent"]
        return [message["params"]["request"]["url"] for message in sent]


@pytest.fixture
def draw(driver: Any, tmp_path: Path) -> Draw:
    """Return what opens the page of figures."""
    return lambda figures: Browser(driver, tmp_path, page(figures))


@pytest.fixture
def browser(draw: Draw, figures: Figures) -> Browser:
    return draw(figures)


def colour(text: str) -> tuple[float, float, float]:
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", text)[:3])
    return red, green, blue


GROUND = "getComputedStyle(element).backgroundColor"


def test_the_page_logs_nothing_and_requests_nothing(browser: Browser) -> None:
    browser.run("window.scrollTo(0, document.body.scrollHeight)")
    assert [] == browser.driver.get_log("browser")
    assert [browser.url] == [url for url in browser.requests() if not url.startswith("data:")]
    assert browser.run("return document.documentElement.classList.contains('scripted')")


def test_light_and_dark_follow_the_system_and_the_switch_counts_more(browser: Browser) -> None:
    def ground() -> str:
        (background,) = browser.values("body", GROUND)
        return str(background)

    def choose(name: str) -> str:
        browser.values(f"#theme-{name}", "element.click()")
        return ground()

    light = ground()
    browser.open(dark=True)
    dark = ground()
    assert contrast(colour(light), colour(dark)) > 12
    assert [light, dark, dark] == [choose(name) for name in ("light", "dark", "auto")]
    choose("light")
    browser.open(dark=True)
    assert light == ground()  # the choice is stored, as far as the browser allows it
    choose("auto")


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_no_width_needs_to_scroll_sideways(browser: Browser, width: int) -> None:
    browser.open(width)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    shown = "main *:not(.scroll *, .scroll, .hidden *, .hidden, svg *, svg)"
    box = "element.getBoundingClientRect()"
    outside = f"{box}.width && ({box}.right > innerWidth + 1 || {box}.left < -1)"
    assert [] == browser.matching(shown, outside)


def test_controls_are_large_enough_to_touch(browser: Browser) -> None:
    browser.open(360)
    box = "element.getBoundingClientRect()"
    controls = "nav a, summary, .theme label, .field input, .cursor"
    assert [] == browser.matching(controls, f"{box}.height < 24 || {box}.width < 24")


def test_the_keyboard_reaches_every_control(browser: Browser) -> None:
    expected = browser.run(
        """
        const all = 'a[href], input, summary, [tabindex="0"]';
        const groups = new Set();
        return [...document.querySelectorAll(all)].filter((element) => {
          if (element.closest("details:not([open])") && element.tagName !== "SUMMARY") return false;
          if (element.type === "radio") { const first = !groups.has(element.name); groups.add(element.name); return first; }
          return element.checkVisibility();
        }).length;
        """
    )
    browser.run("document.activeElement.blur(); window.scrollTo(0, 0)")
    reached = []
    for _ in range(expected + 2):
        browser.press(keys.TAB)
        facts = browser.run(
            """
            const element = document.activeElement;
            if (element === document.body) return null;
            const drawn = element.type === "radio" ? element.nextElementSibling : element;
            const style = getComputedStyle(drawn);
            const place = [...document.querySelectorAll("*")].indexOf(element);
            return [place, style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2];
            """
        )
        if facts is None:
            break
        reached.append(facts)
    assert expected == len(reached)
    assert [place for place, _ in reached] == sorted({place for place, _ in reached})
    assert all(is_shown for _, is_shown in reached), "a focused control has no outline"


def test_arrow_keys_read_the_values_of_a_chart(browser: Browser) -> None:
    browser.run("document.querySelector('#durations .cursor').focus()")
    first, *_, last_but_one, last = browser.values(
        "#durations tbody tr", "element.cells[0].textContent"
    )
    for key, checkpoint in (
        ("", last), (keys.ARROW_LEFT, last_but_one), (keys.HOME, first), (keys.ARROW_LEFT, first),
    ):  # fmt: skip
        browser.press(key)
        (readout,) = browser.texts("#durations .readout")
        assert readout.startswith(f"Checkpoint {checkpoint} · ")
    assert [readout] == browser.values(":focus", "element.getAttribute('aria-valuetext')")


NAMED = """
  (element.getAttribute("aria-label") || "").trim()
  || (element.getAttribute("aria-labelledby") || "").split(" ").some((id) => document.getElementById(id)?.textContent.trim())
  || (element.labels && [...element.labels].some((label) => label.textContent.trim()))
  || (["A", "SUMMARY"].includes(element.tagName) && element.textContent.trim())
"""


def test_every_control_and_picture_has_a_name(browser: Browser) -> None:
    controls = 'a[href], input, summary, [tabindex="0"], svg, figure, section, nav, form, [role]'
    assert [] == browser.matching(controls, f"!({NAMED})")
    levels = browser.values("h1, h2, h3", "Number(element.tagName[1])")
    assert 1 == levels.count(1) and 1 == levels[0]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    without_head = "!element.caption || !element.querySelector('th[scope=col]')"
    assert [] == browser.matching("table", without_head)


def test_the_estimates_follow_the_fields_and_begin_with_those_of_the_report(
    browser: Browser, figures: Figures
) -> None:
    def result(identity: str) -> str:
        (text,) = browser.texts(f"#{identity}")
        return text

    def fill(identity: str, value: str) -> None:
        browser.run(
            "arguments[0].value = arguments[1]; "
            "arguments[0].dispatchEvent(new Event('input', { bubbles: true }));",
            browser.driver.find_element("id", identity),
            value,
        )

    of_report = result("restart-time")
    for identity in ("latency", "storage"):
        (value,) = browser.values(f"#{identity}", "element.value")
        fill(identity, value)
    assert of_report == result("restart-time")  # the formulas of page and report agree
    restart, bill = figures.restart, figures.bill
    assert restart is not None and bill is not None
    fill("latency", "10000")
    seconds = (restart.driver_requests + restart.slowest_requests) * 10
    assert f"about {seconds // 60} min {seconds % 60} s" == result("restart-time")
    for identity, value in (("seconds", "60"), ("puts", "1000"), ("gets", "0"), ("storage", "0")):
        fill(identity, value)
    assert f"${30 * 24 * 60 * (bill.puts_per_batch + 1):,.2f}" == result("bill-total")
    fill("puts", "")
    assert "–" == result("bill-total")


def test_print_shows_the_charts_without_controls(browser: Browser) -> None:
    browser.open(dark=True, media="print")
    assert ["rgb(255, 255, 255)"] == browser.values("body", GROUND)
    controls = "nav, .theme, .cursor, .field input"
    assert [] == browser.matching(controls, "element.checkVisibility()")
    tall = "element.getBoundingClientRect().height > 50"
    assert 8 == len(browser.matching(".chart svg", tall))


@pytest.mark.parametrize("name", [NASTY.replace("alert(1)", "document.title=1"), *NAMES])
def test_names_are_shown_as_text(draw: Draw, figures: Figures, name: str) -> None:
    expected = {*draw(figures).values("*", "element.tagName"), "STRONG"}
    browser = draw(named(figures, name))
    assert [] == browser.driver.get_log("browser")
    assert set(browser.values("*", "element.tagName")) <= expected
    shown = "\ufffd" if name == "\ud800" else name
    assert [shown] == browser.texts("h1")
    assert f"operator {shown}" in browser.texts("#facts span")
    assert [f"Keys: {shown}"] == browser.texts("#keys-0 h3")
    assert [shown] == browser.texts(".finding span")
    if name.isprintable():
        assert f"State of {name}" == browser.run("return document.title")


# ------------------------------------------------------------------------------- what is drawn


def checkpoint(number: int, **values: object) -> CheckpointFigures:
    facts = {"checkpoint_id": number, "state": "retained", "created_at_ms": 1_700_000_000_000}
    return CheckpointFigures(**(facts | {"epoch": 1} | values))  # type: ignore[arg-type]


def batch(number: int, **figures: Any) -> CheckpointFigures:
    return checkpoint(number, figures=BatchFigures(**figures))


@pytest.fixture
def small(draw: Draw) -> Browser:
    """A page whose values a reader can add up."""
    first = batch(7, milliseconds={"plan": 1, "run": 1}, rows=1, extras={"late_calls": 3})
    second = batch(8, milliseconds={"run": 2}, task_milliseconds={"stage": 5, "zip_up": 7})
    third = batch(9, milliseconds={"plan": 3, "run": 1}, rows=12_345, delta_bytes=1536)
    checkpoints = (replace(first, put_retries=2), replace(second, epoch=2), third)
    return draw(replace(EMPTY, checkpoints=checkpoints, older_changes=((5, 100), (6, 200))))


def test_bars_are_stacked_and_an_unknown_value_is_none(small: Browser) -> None:
    paths = small.values("#durations path", "element.getAttribute('d')")
    # The scale ends at 4, so a value of one is 25 of 100 high; y counts from the top.
    assert "4 ms" == small.texts("#durations .scale span")[0]
    assert ["75.00", "25.00"] == re.findall(r"M\S+ (\S+?)h", paths[0])
    assert ["50.00", "50.00", "0.00"] == re.findall(r"M\S+ (\S+?)h", paths[1])
    assert ["75.00", "100.00", "25.00"] == re.findall(r"V(\S+?)h", paths[1])


def test_the_table_has_the_values_of_the_chart(small: Browser) -> None:
    heads = ["Checkpoint", "Plan", "Run tasks", "Commit", "Deliver", "Clean up", "Total"]
    assert [
        [*heads, "Micro-batch", "Tasks"],
        ["7", "1 ms", "1 ms", "–", "–", "–", "2 ms", "–", "0"],
        ["8", "–", "2 ms", "–", "–", "–", "2 ms", "–", "0"],
        ["9", "3 ms", "1 ms", "–", "–", "–", "4 ms", "–", "0"],
    ] == small.rows("#durations")
    assert ["5", "100 B", "–", "–", "100 B"] == small.rows("#bytes")[1]
    assert "2 older checkpoints are no longer stored" in small.texts("#bytes .note")[0]
    # Only a chart of several series has a legend and a total.
    assert heads[1:-1] == small.texts("#durations .legend li")
    assert [] == small.texts("#rows .legend")
    heads, first, second, _ = small.rows("#rows")
    assert ["Checkpoint", "Rows", "Keys", "Output rows", "late calls"] == heads
    assert (["7", "1", "0", "0", "3"], ["8", "0", "0", "0", "0"]) == (first, second)


def test_the_summary_says_where_the_largest_value_is(small: Browser) -> None:
    label = "element.getAttribute('aria-label')"
    assert small.values("#durations svg", label)[0] == (
        "Duration by phase: 3 values, from checkpoint 7 to 9. The largest is 4 ms at 9, the last "
        "4 ms. The table below has all values."
    )
    entries = small.values("#entries svg", label)[0]
    assert entries.startswith("State entries: 3 values, from checkpoint 7 to 9.")


def test_phases_and_retries_are_summed_up(small: Browser) -> None:
    assert [
        ["Phase", "Median", "95th percentile", "Share"],
        ["Plan", "2 ms", "3 ms", "50 %"],
        ["Run tasks", "1 ms", "2 ms", "50 %"],
        ["stage", "5 ms", "5 ms", ""],
        ["zip up", "7 ms", "7 ms", ""],
    ] == small.rows("#phases")
    runs = small.rows("#retries > .scroll")
    assert [["1", "7 to 9", "–", "2"], ["2", "8 to 8", "–", "–"]] == [row[:4] for row in runs[1:]]
    assert "2 runs of the query" in small.texts("#retries .note")[0]
    assert ["7", "–", "2", "0", "0"] == small.rows("#retries details")[1]


def test_numbers_have_the_forms_of_the_command_line(draw: Draw) -> None:
    sizes = [0, 1023, 1024, 1536, 1024**2 - 1, 5 * 1024**4, 3000 * 1024**4]
    times = [0, 999, 1000, 59_940, 59_960, 125_000, 11_040_000, 180_000_000]
    checkpoints = (
        *(batch(number, delta_bytes=value) for number, value in enumerate(sizes)),
        *(batch(number, milliseconds={"run": value}) for number, value in enumerate(times)),
    )
    browser = draw(replace(EMPTY, checkpoints=checkpoints))
    cells = [row[1] for row in browser.rows("#bytes")[1:]]
    assert [texts.size(value) for value in sizes] == cells[: len(sizes)]
    cells = [row[2] for row in browser.rows("#durations")[1:]]
    assert [texts.duration(value) for value in times] == cells[len(sizes) :]
    assert "14 Nov 2023, 22:13:20 UTC" == browser.rows("#checkpoints")[1][2]
    # A time that no calendar has is a number.
    hostile = checkpoint(1, created_at_ms=2**60)
    browser = draw(replace(EMPTY, checkpoints=(hostile,)))
    assert [] == browser.driver.get_log("browser")
    assert browser.rows("#checkpoints")[1][2].endswith(" ms")


def test_scales_end_above_the_largest_value_and_not_far(draw: Draw) -> None:
    counts = {0: "4", 1: "4", 5: "8", 11: "12", 6045: "8,000", 469: "600"}
    sizes = {900: "1,000 B", 700 * 1024: "800 KiB", 1020 * 1024: "1 MiB", 1153434: "1.2 MiB"}
    skew = (
        *(KeyGroups(operator=str(count), keys=(count,), change_bytes=()) for count in counts),
        *(KeyGroups(operator=str(count), keys=(), change_bytes=(count,)) for count in sizes),
    )
    browser = draw(replace(EMPTY, checkpoints=(checkpoint(1),), skew=skew))
    tops = browser.texts("#key-groups .scale span:first-child")
    assert [*counts.values(), *sizes.values()] == tops


def test_many_checkpoints_are_bounded(draw: Draw, figures: Figures) -> None:
    many = tuple(replace(figures.checkpoints[0], checkpoint_id=number) for number in range(5000))
    skew = (KeyGroups(operator="op", keys=tuple(range(32768)), change_bytes=(1,) * 32768),)
    browser = draw(replace(figures, checkpoints=many, newest_id=4999, skew=skew))
    assert 401 == len(browser.rows("#rows")) == len(browser.rows("#checkpoints"))
    assert "The newest 400 are shown." in browser.texts("#checkpoints .note")[0]
    assert "Each bar is the largest of 128 key groups." in browser.texts("#keys-0 .note")[0]
    assert 257 == len(browser.rows("#keys-0"))
    assert len(browser.values("*", "1")) < 60_000


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_page_without_state_is_drawn(draw: Draw, is_damaged: bool) -> None:
    damaged = checkpoint(1, state="damaged", problem="cut", created_at_ms=None, epoch=None)
    browser = draw(replace(EMPTY, checkpoints=(damaged,)) if is_damaged else EMPTY)
    assert [] == browser.driver.get_log("browser")
    assert ["Overview", "Checkpoints"] == browser.texts("h2") == browser.texts("nav a")
    words = "Nothing stands out." if is_damaged else "contains no checkpoint yet"
    assert words in browser.texts("#overview .card")[0]


def test_uncounted_key_groups_have_the_reason(draw: Draw, figures: Figures) -> None:
    browser = draw(replace(figures, skew=(), skew_problem=NASTY))
    assert [f"Not counted: {NASTY}"] == browser.texts("#key-groups .card")


def test_without_scripts_the_page_says_what_it_needs(browser: Browser) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open()
        source = browser.driver.execute_cdp_cmd("DOM.getDocument", {})["root"]["nodeId"]
        query = {"nodeId": source, "selector": "noscript p"}
        node = browser.driver.execute_cdp_cmd("DOM.querySelector", query)["nodeId"]
        box = browser.driver.execute_cdp_cmd("DOM.getBoxModel", {"nodeId": node})["model"]
        assert box["width"] > 100
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
