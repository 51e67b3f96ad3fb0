"""The page as text: complete, alone, and safe whatever the names are."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from itertools import combinations

import pytest
from tests.unit.checkpoint.dict_store import DictStore
from tests.unit.extensions.report.locations import CostlyHistory
from tests.unit.extensions.report.test_html import NASTY, Reader, read

from statelog.extensions.report import Figures, ReportPlan, collect, page
from statelog.extensions.report.figures import Finding
from statelog.extensions.report.skew import KeyGroups

NAMES = [NASTY, '"><img src=x onerror=alert(1)>', "'--><style>", "Größe \u202e\U0001f980", "\ud800"]


@pytest.fixture(scope="module")
def figures() -> Figures:
    store = DictStore()
    CostlyHistory(5, store, retained=9).run(12)
    return collect(store, "dict://job", ReportPlan())


@pytest.fixture(scope="module")
def found(figures: Figures) -> Reader:
    return read(page(figures))


def ids(reader: Reader, *names: str) -> list[str]:
    return [str(facts.get("id", "")) for name, facts in reader.tags if name in names]


def test_every_section_is_there_and_linked(found: Reader) -> None:
    sections = ids(found, "section")
    assert [
        *("overview", "state", "batches", "key-groups", "restart", "bill", "checkpoints"),
    ] == sections
    links = [facts["href"] for name, facts in found.tags if name == "a"]
    assert [f"#{one}" for one in ["main", *sections]] == links


def test_ids_are_unique_and_references_have_a_target(found: Reader) -> None:
    every = [str(facts["id"]) for _, facts in found.tags if "id" in facts]
    assert len(every) == len(set(every))
    for _, facts in found.tags:
        for name in ("aria-labelledby", "for"):
            if name in facts:
                assert set(str(facts[name]).split()) <= set(every), facts


def test_every_field_has_a_label(found: Reader) -> None:
    fields = ids(found, "input")
    labelled = [facts["for"] for name, facts in found.tags if name == "label"]
    assert 10 == len(fields) and fields == labelled


def test_each_chart_has_a_summary_and_a_table(figures: Figures) -> None:
    charts = re.findall(r'<figure class="chart".*?</figure>', page(figures), re.S)
    assert 8 == len(charts)
    for chart in charts:
        assert re.search(r'role="img" aria-label="[^"]{40,}"', chart)
        rows = re.findall(r"<tr>", chart)
        assert len(rows) > 3


def test_the_page_needs_nothing_else(figures: Figures) -> None:
    text = page(figures)
    tags = read(text).tags
    assert not {"link", "img", "iframe", "object", "base"} & {name for name, _ in tags}
    for _, facts in tags:
        assert not {"src", "srcset", "action", "data", "background"} & facts.keys()
        assert not [name for name in facts if name.startswith("on")]
        assert str(facts.get("href", "#")).startswith("#")
    assert "@import" not in text and "url(" not in text and "fetch(" not in text


def test_the_policy_forbids_all_but_the_scripts_of_the_page(figures: Figures) -> None:
    text = page(figures)
    code = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert 1 == len(code)
    digest = base64.b64encode(hashlib.sha256(code[0].encode()).digest()).decode()
    (policy,) = (
        facts["content"]
        for _, facts in read(text).tags
        if facts.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert "default-src 'none'" in policy and f"script-src 'sha256-{digest}'" in policy


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_text_wherever_it_is(figures: Figures, found: Reader, name: str) -> None:
    skew = tuple(replace(one, operator=name) for one in figures.skew)
    damaged = replace(figures.checkpoints[0], state="damaged", problem=name, created_at_ms=None)
    checkpoints = (damaged, *figures.checkpoints[1:])
    nasty = replace(
        figures,
        location=name,
        query_id=name,
        operators=(name,),
        delivery=name,
        skew=skew,
        checkpoints=checkpoints,
        findings=(Finding("damage", name),),
    )
    text = page(nasty)
    text.encode("utf-8")
    reader = read(text)
    assert {one for one, _ in reader.tags} <= {one for one, _ in found.tags} | {"strong"}
    assert 2 == [one for one, _ in reader.tags].count("script")
    shown = (
        name.encode("utf-8", "replace").decode().replace("?", "\ufffd")
        if name == "\ud800"
        else name
    )
    assert reader.text.count(shown) >= 4
    block = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.S)
    assert block is not None
    assert name == json.loads(block[1])["location"]


def test_without_state_there_is_a_page_too() -> None:
    empty = Figures(location="/job", made_at_ms=0, version="1")
    assert "no checkpoint yet" in page(empty)
    assert ["overview", "checkpoints"] == ids(read(page(empty)), "section")


def test_a_damaged_newest_checkpoint_leaves_a_page(figures: Figures) -> None:
    (one, *_) = figures.checkpoints
    damaged = replace(one, state="damaged", problem="cut", created_at_ms=None)
    text = page(
        replace(figures, checkpoints=(damaged,), newest_id=None, restart=None, bill=None, skew=())
    )
    assert ["overview", "checkpoints"] == ids(read(text), "section")


def test_many_checkpoints_and_key_groups_are_bounded(figures: Figures) -> None:
    (one, *_) = figures.checkpoints
    many = tuple(replace(one, checkpoint_id=number) for number in range(5000))
    skew = (KeyGroups(operator="op", keys=tuple(range(32768)), change_bytes=(1,) * 32768),)
    text = page(replace(figures, checkpoints=many, newest_id=4999, skew=skew))
    shown = text.partition('<script type="application/json"')[0]
    assert len(shown) < 2_000_000
    assert "The newest 400 are shown." in text
    assert "Each bar is the largest of 128 key groups." in text


# ---------------------------------------------------------------------------------------- colours


def themes() -> dict[str, dict[str, tuple[float, float, float]]]:
    """Return the colours of the style sheet by theme and name, each from 0 to 1."""
    css = page(Figures(location="", made_at_ms=0, version="")).partition("<style>")[2]
    found = {}
    for theme, rule in (("light", ":root {"), ("dark", ':root[data-theme="dark"] {')):
        block = css.partition(rule)[2].partition("}")[0]
        found[theme] = {
            name: tuple(int(value[at : at + 2], 16) / 255 for at in (0, 2, 4))
            for name, value in re.findall(r"--([\w-]+): #(\w{6});", block)
        }
    return found  # type: ignore[return-value]


def linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def luminance(colour: tuple[float, float, float]) -> float:
    red, green, blue = map(linear, colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_and_shapes_have_contrast(theme: str) -> None:
    colours = themes()[theme]
    for ground in ("bg", "card"):
        for name in ("ink", "muted", "accent", "bad", "warn", "good"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    for name in ("tone-1", "tone-2", "tone-3", "tone-4", "tone-5", "focus", "field"):
        assert contrast(colours[name], colours["card"]) >= 3, name


def test_the_dark_colours_of_the_system_are_those_of_the_switch() -> None:
    css = page(Figures(location="", made_at_ms=0, version=""))
    blocks = re.findall(r"--bg: #10161d;.*?--tone-5: #7d8794;", css, re.S)
    assert 2 == len(blocks)
    assert 1 == len({re.sub(r"\s+", " ", block) for block in blocks})


# Viénot, Brettel and Mollon (1999); tritanopia by Machado et al. (2009), severity 1.
BLINDNESS = {
    "protan": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
    "deutan": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
}


def lab(colour: tuple[float, float, float], sight: str) -> tuple[float, float, float]:
    """Return a colour as seen, in CIELAB."""
    rgb = [linear(one) for one in colour]
    seen = [
        min(max(sum(a * b for a, b in zip(row, rgb, strict=True)), 0.0), 1.0)
        for row in BLINDNESS[sight]
    ]
    red, green, blue = seen
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    fx, fy, fz = (one ** (1 / 3) if one > 0.008856 else 7.787 * one + 16 / 116 for one in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sight", sorted(BLINDNESS))
def test_colour_blind_people_can_tell_the_series_apart(theme: str, sight: str) -> None:
    colours = themes()[theme]
    for one, other in combinations(["tone-1", "tone-2", "tone-3", "tone-4", "tone-5"], 2):
        pair = lab(colours[one], sight), lab(colours[other], sight)
        distance = sum((a - b) ** 2 for a, b in zip(*pair, strict=True)) ** 0.5
        assert distance >= 18, (one, other, round(distance, 1))
