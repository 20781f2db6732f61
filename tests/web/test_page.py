"""The page's files keep the promises that make it safe and able to work offline."""

import re
from pathlib import Path

import pytest

from standby.web.pages import FILES, HERE

PAGES = ["index.html", "docs.html"]
SOURCES = [*(HERE / name for name in PAGES), *(HERE / "static" / name for name in FILES)]


def test_every_file_of_the_page_is_served_and_there() -> None:
    assert {path.name for path in (HERE / "static").iterdir()} == set(FILES)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(https?:)?//[a-z0-9-]+\.[a-z]", text)


@pytest.mark.parametrize("name", PAGES)
def test_the_document_has_no_script_or_style_of_its_own(name: str) -> None:
    text = (HERE / name).read_text()
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son[a-z]+=", text)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_scripts_never_put_text_in_as_markup(name: str) -> None:
    banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|localStorage"
    assert not re.search(banned, (HERE / "static" / name).read_text())


@pytest.mark.parametrize(("script", "page"), [("app.js", "index.html"), ("docs.js", "docs.html")])
def test_every_element_the_script_asks_for_is_in_the_document(script: str, page: str) -> None:
    asked = set(re.findall(r'by\("([a-z-]+)"\)', (HERE / "static" / script).read_text()))
    there = set(re.findall(r'id="([a-z-]+)"', (HERE / page).read_text()))
    assert asked <= there
