"""
The page in a real browser: no errors, no requests, colours, width, keyboard, names of controls.

Needs Chromium and its driver on the machine (Debian: `apt-get install chromium chromium-driver`);
without them the tests are skipped.
"""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.unit.checkpoint.dict_store import DictStore
from tests.unit.extensions.report.locations import CostlyHistory
from tests.unit.extensions.report.test_html import NASTY
from tests.unit.extensions.report.test_page import contrast

from statelog.extensions.report import Figures, ReportPlan, collect, page

webdriver = pytest.importorskip("selenium.webdriver")
keys = pytest.importorskip("selenium.webdriver.common.keys").Keys

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
DRIVER = shutil.which("chromedriver") or ""
SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(
        not (BROWSER and DRIVER),
        reason="no Chromium here: apt-get install chromium chromium-driver",
    ),
    pytest.mark.xdist_group("browser"),
]


@pytest.fixture(scope="module")
def figures() -> Figures:
    store = DictStore()
    CostlyHistory(5, store, retained=9).run(12)
    return collect(store, "dict://job", ReportPlan())


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for switch in (*SWITCHES, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    one = webdriver.Chrome(options=options, service=Service(DRIVER))
    one.set_page_load_timeout(60)
    yield one
    one.quit()


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

    def requests(self) -> list[str]:
        messages = [
            json.loads(one["message"])["message"] for one in self.driver.get_log("performance")
        ]
        return [
            one["params"]["request"]["url"]
            for one in messages
            if one["method"] == "Network.requestWillBeSent"
        ]


@pytest.fixture
def browser(driver: Any, figures: Figures, tmp_path: Path) -> Browser:
    return Browser(driver, tmp_path, page(figures))


def colour(text: str) -> tuple[float, float, float]:
    red, green, blue = (int(one) / 255 for one in re.findall(r"\d+", text)[:3])
    return red, green, blue


COLOURS = """
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const box = element.getBoundingClientRect();
    if (!own || element.closest(".hidden") || box.width < 2 || box.height < 2) continue;
    let ground = element;
    while (ground && /^rgba\\(.*, 0\\)$|transparent/.test(getComputedStyle(ground).backgroundColor)) ground = ground.parentElement;
    const behind = ground ? getComputedStyle(ground).backgroundColor : "rgb(255, 255, 255)";
    found.push([getComputedStyle(element).color, behind, element.textContent.trim().slice(0, 40)]);
  }
  return found;
"""


def test_the_console_has_no_word_and_the_network_no_request(browser: Browser) -> None:
    browser.run("window.scrollTo(0, document.body.scrollHeight)")
    assert [] == browser.driver.get_log("browser")
    assert [browser.url] == [one for one in browser.requests() if not one.startswith("data:")]
    assert browser.run("return document.documentElement.classList.contains('scripted')")


@pytest.mark.parametrize("dark", [False, True])
def test_all_words_have_contrast(browser: Browser, dark: bool) -> None:
    browser.open(dark=dark)
    found = browser.run(COLOURS)
    assert len(found) > 200
    low = {
        (front, back, text)
        for front, back, text in found
        if contrast(colour(front), colour(back)) < 4.5
    }
    assert not low


def test_light_and_dark_follow_the_system_and_the_switch_counts_more(browser: Browser) -> None:
    def ground() -> str:
        return browser.run("return getComputedStyle(document.body).backgroundColor")

    def choose(name: str) -> str:
        browser.run("document.getElementById(arguments[0]).click()", f"theme-{name}")
        return ground()

    light = ground()
    browser.open(dark=True)
    dark = ground()
    assert contrast(colour(light), colour(dark)) > 12
    assert [light, dark, dark] == [choose(name) for name in ("light", "dark", "auto")]
    choose("light")
    browser.open(dark=True)
    assert light == ground()  # kept, as far as the browser allows it
    choose("auto")


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_no_width_needs_to_scroll_sideways(browser: Browser, width: int) -> None:
    browser.open(width)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    hidden = browser.run(
        """
        return [...document.querySelectorAll("main *")].filter((one) => {
          if (one.closest(".scroll, .hidden, svg")) return false;
          const box = one.getBoundingClientRect();
          return box.width && (box.right > innerWidth + 1 || box.left < -1);
        }).map((one) => one.className || one.tagName);
        """
    )
    assert [] == hidden


def test_the_keyboard_reaches_every_control(browser: Browser) -> None:
    expected = browser.run(
        """
        const all = 'a[href], input, summary, [tabindex="0"]';
        const groups = new Set();
        return [...document.querySelectorAll(all)].filter((one) => {
          if (one.closest("details:not([open])") && one.tagName !== "SUMMARY") return false;
          if (one.type === "radio") { const first = !groups.has(one.name); groups.add(one.name); return first; }
          return one.checkVisibility();
        }).length;
        """
    )
    browser.run("document.activeElement.blur(); window.scrollTo(0, 0)")
    reached = []
    for _ in range(expected + 2):
        browser.press(keys.TAB)
        facts = browser.run(
            """
            const one = document.activeElement;
            if (one === document.body) return null;
            const drawn = one.type === "radio" ? one.nextElementSibling : one;
            const style = getComputedStyle(drawn);
            const place = [...document.querySelectorAll("*")].indexOf(one);
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
    rows = browser.run(
        "return [...document.querySelectorAll('#durations tbody tr')].map((row) => row.cells[0].textContent)"
    )

    def told() -> str:
        return browser.run("return document.querySelector('#durations .readout').textContent")

    assert told().startswith(f"Checkpoint {rows[-1]} · ")
    browser.press(keys.ARROW_LEFT)
    assert told().startswith(f"Checkpoint {rows[-2]} · ")
    browser.press(keys.HOME)
    assert told().startswith(f"Checkpoint {rows[0]} · ")
    browser.press(keys.ARROW_LEFT)
    assert told().startswith(f"Checkpoint {rows[0]} · ")
    spoken = browser.run("return document.activeElement.getAttribute('aria-valuetext')")
    assert spoken == told()


def test_every_control_and_picture_has_a_name(browser: Browser) -> None:
    nameless = browser.run(
        """
        const named = (one) => (one.getAttribute("aria-label") || "").trim()
          || (one.getAttribute("aria-labelledby") || "").split(" ").some((id) => document.getElementById(id)?.textContent.trim())
          || (one.labels && [...one.labels].some((label) => label.textContent.trim()))
          || (["A", "SUMMARY"].includes(one.tagName) && one.textContent.trim());
        const all = 'a[href], input, summary, [tabindex="0"], svg, figure, section, nav, form, [role]';
        return [...document.querySelectorAll(all)].filter((one) => !named(one)).map((one) => one.outerHTML.slice(0, 120));
        """
    )
    assert [] == nameless
    levels = browser.run(
        "return [...document.querySelectorAll('h1,h2,h3')].map((one) => Number(one.tagName[1]))"
    )
    assert 1 == levels.count(1) and 1 == levels[0]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert browser.run(
        "return [...document.querySelectorAll('table')].every((one) => one.caption && one.querySelector('th[scope=col]'))"
    )


def test_what_is_touched_is_large_enough(browser: Browser) -> None:
    browser.open(360)
    small = browser.run(
        """
        return [...document.querySelectorAll("nav a, summary, .theme label, .field input, .cursor")].filter((one) => {
          const box = one.getBoundingClientRect();
          return box.height < 24 || box.width < 24;
        }).map((one) => one.outerHTML.slice(0, 80));
        """
    )
    assert [] == small


def test_the_estimates_follow_the_fields_and_begin_with_those_of_the_report(
    browser: Browser, figures: Figures
) -> None:
    def told(identity: str) -> str:
        return browser.run("return document.getElementById(arguments[0]).textContent", identity)

    def fill(identity: str, value: str) -> None:
        browser.run(
            """
            const field = document.getElementById(arguments[0]);
            field.value = arguments[1];
            field.dispatchEvent(new Event("input", { bubbles: true }));
            """,
            identity,
            value,
        )

    before = told("restart-time"), told("bill-total")
    latency = browser.run("return document.getElementById('latency').value")
    fill("latency", latency)
    prices = browser.run("return document.getElementById('storage').value")
    fill("storage", prices)
    assert before[0] == told("restart-time")  # the formulas of page and report agree
    restart = figures.restart
    assert restart is not None
    fill("latency", "10000")
    seconds = (restart.driver_requests + restart.slowest_requests) * 10
    assert f"about {seconds // 60} min {seconds % 60} s" == told("restart-time")
    fill("seconds", "60")
    fill("puts", "1000")
    fill("gets", "0")
    fill("storage", "0")
    puts = 30 * 24 * 60 * (figures.bill.puts_per_batch + 1)  # type: ignore[union-attr]
    assert f"${puts:,.2f}" == told("bill-total")
    fill("puts", "")
    assert "–" == told("bill-total")


def test_print_shows_the_charts_without_controls(browser: Browser) -> None:
    browser.open(dark=True, media="print")
    ground, hidden, charts = browser.run(
        """
        return [
          getComputedStyle(document.body).backgroundColor,
          [...document.querySelectorAll("nav, .theme, .cursor, .field input")].filter((one) => one.checkVisibility()).length,
          [...document.querySelectorAll(".chart svg")].filter((one) => one.getBoundingClientRect().height > 50).length,
        ];
        """
    )
    assert ("rgb(255, 255, 255)", 0, 8) == (ground, hidden, charts)


def test_names_of_a_location_run_no_script(driver: Any, figures: Figures, tmp_path: Path) -> None:
    nasty = NASTY.replace("alert(1)", "document.title='taken'")
    skew = tuple(replace(one, operator=nasty) for one in figures.skew)
    text = page(replace(figures, location=nasty, operators=(nasty,), query_id=nasty, skew=skew))
    browser = Browser(driver, tmp_path, text)
    assert [] == browser.driver.get_log("browser")
    assert nasty == browser.run("return document.querySelector('h1').textContent")
    assert f"State of {nasty}" == browser.run("return document.title")
