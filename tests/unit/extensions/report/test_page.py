"""The page as text: complete, alone, and safe whatever the names are."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.locations.costly_history import NASTY, named
from tests.unit.extensions.report.support import EMPTY, NAMES, contrast

from statelog.extensions.report import PRICES, Figures, page
from statelog.extensions.report.page import json_text


class Reader(HTMLParser):
    """Keeps tags with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def ids(self, name: str) -> list[str]:
        return [str(facts.get("id", "")) for tag, facts in self.tags if tag == name]


def block_of(text: str) -> str:
    """Return the JSON in a page."""
    blocks = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text, re.S)
    assert 1 == len(blocks)
    return str(blocks[0])


@pytest.fixture(scope="module")
def reader(figures: Figures) -> Reader:
    return Reader(page(figures))


def test_every_section_is_there_and_linked(reader: Reader) -> None:
    sections = ["overview", "state", "batches", "key-groups", "restart", "bill", "checkpoints"]
    assert sections == reader.ids("section")
    links = [facts["href"] for name, facts in reader.tags if name == "a"]
    assert [f"#{section}" for section in ["main", *sections]] == links


def test_the_page_needs_nothing_else(figures: Figures, reader: Reader) -> None:
    assert not {"link", "img", "iframe", "object", "base"} & {name for name, _ in reader.tags}
    for _, facts in reader.tags:
        assert not {"src", "srcset", "action", "data", "background", "style"} & facts.keys()
        assert not [name for name in facts if name.startswith("on")]
        assert str(facts.get("href", "#")).startswith("#")
    text = page(figures)
    for request in ("@import", "url(", "fetch("):
        assert request not in text
    for markup in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser"):
        assert markup not in text
    assert "eval(" not in text


def test_the_policy_forbids_all_but_the_style_and_the_script_of_the_page(figures: Figures) -> None:
    text = page(figures)
    metas = [facts for name, facts in Reader(text).tags if name == "meta"]
    (meta,) = (facts for facts in metas if "http-equiv" in facts)
    assert "Content-Security-Policy" == meta["http-equiv"]
    policy = str(meta["content"])
    for element in ("style", "script"):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    rules = {f"{name} 'none'" for name in ("default-src", "base-uri", "form-action")}
    assert {*rules, "require-trusted-types-for 'script'"} <= set(policy.split("; "))


def test_the_page_has_the_figures_and_the_price_lists(figures: Figures) -> None:
    facts = json.loads(block_of(page(figures)))
    lists = facts.pop("price_lists")
    assert json.loads(json.dumps(figures.to_json())) == facts
    assert list(PRICES) == [prices["name"] for prices in lists]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_data_wherever_it_is(figures: Figures, reader: Reader, name: str) -> None:
    text = page(named(figures, name))
    text.encode("utf-8")
    assert reader.tags == Reader(text).tags
    facts = json.loads(block_of(text))
    assert (name, [name]) == (facts["location"], facts["operators"])
    assert name == facts["findings"][0]["text"] == facts["skew"][0]["operator"]


texts = st.text(st.characters(exclude_categories=["Cs"])) | st.just(NASTY) | st.just('"><b>')


@given(
    st.recursive(
        texts | st.integers() | st.none(),
        lambda children: st.lists(children) | st.dictionaries(texts, children),
    )
)
def test_data_come_back_and_cannot_end_their_block(value: object) -> None:
    text = json_text(value)
    assert value == json.loads(text)
    assert not {"<", ">", "&"} & set(text) and text.isascii()


def test_a_number_that_json_does_not_have_is_not_known() -> None:
    assert '{"a":[null,null,1.5]}' == json_text({"a": [float("nan"), float("inf"), 1.5]})


# ---------------------------------------------------------------------------------------- colours


def themes() -> dict[str, dict[str, tuple[float, float, float]]]:
    """Return the colours of the style sheet by theme and name, each from 0 to 1."""
    css = page(EMPTY).partition("<style>")[2]
    colours: dict[str, dict[str, object]] = {"light": {}, "dark": {}}
    pairs = re.findall(r"--([\w-]+): light-dark\(#(\w{6}), #(\w{6})\);", css)
    for name, *values in pairs:
        for theme, value in zip(colours, values, strict=True):
            colours[theme][name] = tuple(int(value[at : at + 2], 16) / 255 for at in (0, 2, 4))
    return colours  # type: ignore[return-value]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_and_shapes_have_contrast(theme: str) -> None:
    colours = themes()[theme]
    for ground in ("bg", "card"):
        for name in ("ink", "muted", "accent", "bad", "warn", "good"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    for name in ("tone-1", "tone-2", "tone-3", "tone-4", "tone-5", "focus", "field"):
        assert contrast(colours[name], colours["card"]) >= 3, name
