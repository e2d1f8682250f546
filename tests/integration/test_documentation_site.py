"""The documentation in a real browser: pages open, links lead somewhere, the search finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait
from support.harness.availability import available
from support.harness.browser import browsing, build_site, chromedriver, serving

WAIT_S = 60
BLANK_BYTES = 10_000
"""A picture of an empty page has fewer."""


pytestmark = pytest.mark.chaos  # `make docs` builds the site, strictly


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build_site(folder)
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with serving(site) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    with browsing(available(chromedriver)) as browser:
        yield browser


def test_every_link_of_every_page_leads_to_a_place_that_is_there(
    site: Path, address: str, browser: Chrome
) -> None:
    links: dict[str, set[str]] = {}
    places: dict[str, set[str]] = {}
    for page in sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html")):
        if page == "404.html":
            continue
        browser.get(f"{address}/{page}")
        links[page] = set(_asked(browser, "a[href]", "href"))
        places[page] = {"", *_asked(browser, "[id]", "id")}
        broken = _asked(browser, "img", "naturalWidth")
        assert "0" not in broken, f"{page} has a picture that cannot be shown"
        assert browser.get_log("browser") == [], page
        assert len(browser.get_screenshot_as_png()) > BLANK_BYTES, f"{page} is blank"
    assert len(links) > 25
    assert sum(map(len, links.values())) > 1000
    wrong = [
        f"{page} -> {link}"
        for page, found in links.items()
        for link in found
        if link.startswith(address) and not _leads_to(places, link.removeprefix(address))
    ]
    assert wrong == []


def _asked(browser: Chrome, selector: str, name: str) -> list[str]:
    """A property of every element of a page, as the browser has it."""
    script = "return [...document.querySelectorAll(arguments[0])].map(e => String(e[arguments[1]]))"
    found: list[str] = browser.execute_script(script, selector, name)
    return found


def _leads_to(places: dict[str, set[str]], link: str) -> bool:
    page, anchor = urldefrag(link)
    name = page.strip("/")
    if name.startswith("assets/"):
        return True
    return unquote(anchor) in places.get(name or "index.html", set())


def test_the_search_finds_the_page_of_an_error(address: str, browser: Chrome) -> None:
    browser.get(f"{address}/index.html?q=TXNLOG_PRODUCER_FENCED")
    found = WebDriverWait(browser, WAIT_S).until(
        lambda asked: asked.find_elements(By.CSS_SELECTOR, ".md-search-result__link")
    )
    assert any("errors.html" in str(link.get_attribute("href")) for link in found)


def test_a_link_that_is_clicked_opens_its_page(address: str, browser: Chrome) -> None:
    browser.get(f"{address}/index.html")
    browser.find_element(By.CSS_SELECTOR, "article a[href='exactly-once.html']").click()
    WebDriverWait(browser, WAIT_S).until(lambda asked: "exactly-once.html" in asked.current_url)
    assert browser.find_element(By.TAG_NAME, "h1").text.startswith("Exactly-once")
