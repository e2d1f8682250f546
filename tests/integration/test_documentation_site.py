"""The documentation in a real browser: pages open, links lead somewhere, the search finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait
from support.harness.availability import available
from support.harness.browser import (
    HEIGHT,
    WIDTHS,
    browsing,
    build_site,
    chromedriver,
    serving,
    set_width,
)

WAIT_S = 60
BLANK_BYTES = 10_000
"""A picture of an empty page has fewer."""
# Text that is cut off: wider than its element, which neither shows nor scrolls the rest.
CUT_OFF = """
return [...document.querySelectorAll("article *, .md-sidebar--secondary *")]
  .filter(e => ["hidden", "clip"].includes(getComputedStyle(e).overflowX))
  .filter(e => e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1)
  .map(e => e.textContent.trim())
"""
# Names in tables that stand on more than one line, but for those of tests and the like.
BROKEN_NAMES = r"""
return [...document.querySelectorAll("td code, th code")]
  .filter(e => /^[\w.]{1,40}$/.test(e.textContent) && e.getClientRects().length > 1)
  .map(e => e.textContent)
"""

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


@pytest.fixture
def pages(site: Path) -> list[str]:
    found = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    return [page for page in found if page != "404.html"]


def test_every_link_of_every_page_leads_to_a_place_that_is_there(
    pages: list[str], address: str, browser: Chrome
) -> None:
    links: dict[str, set[str]] = {}
    places: dict[str, set[str]] = {}
    for page in pages:
        browser.get(f"{address}/{page}")
        links[page] = set(_asked(browser, "a[href]", "href"))
        places[page] = {"", *_asked(browser, "[id]", "id")}
        broken = _asked(browser, "img", "naturalWidth")
        assert "0" not in broken, f"{page} has a picture that cannot be shown"
        assert browser.get_log("browser") == [], page
    assert len(links) > 25
    assert sum(map(len, links.values())) > 1000
    wrong = [
        f"{page} -> {link}"
        for page, found in links.items()
        for link in found
        if link.startswith(address) and not _leads_to(places, link.removeprefix(address))
    ]
    assert wrong == []


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits_into_its_window_with_whole_names(
    pages: list[str], address: str, browser: Chrome, width: int
) -> None:
    set_width(browser, width)
    wide = "return document.documentElement.scrollWidth"
    for page in pages:
        browser.get(f"{address}/{page}")
        assert browser.execute_script(wide) == width, f"{page} is wider than its window"
        assert browser.execute_script(CUT_OFF) == [], page
        assert browser.execute_script(BROKEN_NAMES) == [], page
        assert len(browser.get_screenshot_as_png()) > BLANK_BYTES, f"{page} is blank"


def test_the_first_page_shows_the_picture_and_all_of_the_job(site: Path, browser: Chrome) -> None:
    set_width(browser, WIDTHS[0])
    browser.get((site / "index.html").as_uri())
    (picture,) = browser.find_elements(By.CSS_SELECTOR, "article img")
    assert str(picture.get_attribute("src")).endswith("exactly_once.svg")
    assert picture.rect["y"] < HEIGHT
    blocks = browser.find_elements(By.CSS_SELECTOR, "article pre code")
    (job,) = [block for block in blocks if "spark.readStream" in block.text]
    assert job.get_property("scrollWidth") == job.get_property("clientWidth")


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


@pytest.mark.parametrize("opened", ["from a server", "as a file"])
@pytest.mark.parametrize("page", ["index.html", "internals/faults.html"])
def test_the_search_finds_the_page_of_an_error(
    site: Path, address: str, browser: Chrome, page: str, opened: str
) -> None:
    set_width(browser, WIDTHS[0])
    browser.get((site / page).as_uri() if opened == "as a file" else f"{address}/{page}")
    box = browser.find_element(By.CSS_SELECTOR, "input.md-search__input")
    box.click()
    box.send_keys("TXNLOG_PRODUCER_FENCED")
    found = WebDriverWait(browser, WAIT_S).until(
        lambda asked: asked.find_elements(By.CSS_SELECTOR, ".md-search-result__link")
    )
    (link,) = [link for link in found if "#txnlog_producer_fenced" in _address(link)]
    browser.get(_address(link))
    assert browser.find_element(By.TAG_NAME, "h1").text.startswith("Errors")


def _address(link: WebElement) -> str:
    return str(link.get_attribute("href"))


def test_a_link_that_is_clicked_opens_its_page(address: str, browser: Chrome) -> None:
    browser.get(f"{address}/index.html")
    browser.find_element(By.CSS_SELECTOR, "article a[href='exactly-once.html']").click()
    WebDriverWait(browser, WAIT_S).until(lambda asked: "exactly-once.html" in asked.current_url)
    assert browser.find_element(By.TAG_NAME, "h1").text.startswith("Exactly-once")
