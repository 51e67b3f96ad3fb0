"""No text becomes markup, and none is lost."""

import json
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from statelog.extensions.report.html import data_block, joined, tag

NASTY = "</script><script>alert(1)</script>"


class Reader(HTMLParser):
    """Keeps tags with their attributes, and the text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


texts = st.text(st.characters(exclude_categories=["Cs", "Cc"])) | st.just(NASTY) | st.just('"><b>')


@given(texts, texts)
def test_text_and_attribute_come_back_as_they_were(text: str, value: str) -> None:
    found = read(tag("p", {"title": value}, text, [text, None]))
    assert [("p", {"title": value})] == found.tags
    assert text + text == found.text


@given(st.text())
def test_any_text_can_be_stored_and_stays_text(text: str) -> None:
    page = tag("p", {"title": text}, text)
    page.encode("utf-8")
    assert ["p"] == [name for name, _ in read(page).tags]


@given(
    st.recursive(
        texts | st.integers() | st.none(), lambda one: st.lists(one) | st.dictionaries(texts, one)
    )
)
def test_data_come_back_and_cannot_end_their_block(value: object) -> None:
    page = data_block("figures", value)
    found = read(page)
    assert [("script", {"type": "application/json", "id": "figures"})] == found.tags
    assert value == json.loads(found.text)
    assert 1 == page.count("</")


def test_elements_are_not_escaped_twice() -> None:
    inner = tag("b", {}, "a & b")
    assert "<p><b>a &amp; b</b><i></i></p>" == tag("p", {}, inner, tag("i"))
    assert "<b>a &amp; b</b>&lt;" == joined(inner, "<")


def test_attributes_that_are_off_are_left_out() -> None:
    page = tag("input", {"checked": True, "disabled": False, "id": None, "min": 0})
    assert '<input checked min="0">' == page


def test_what_no_file_can_have_is_replaced() -> None:
    assert "<p>a\ufffdb\ufffdc</p>" == tag("p", {}, "a\ud800b\x00c")
