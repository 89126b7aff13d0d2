"""The page of `report`, opened in Debian's chromium."""

import json
import shutil

import pytest
from pages import assert_shows, cell, penalties, picture, positions, power

from probconserv.experiments.paper._report import report
from probconserv.experiments.paper._tables import as_json

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: the report is not opened in a browser"
)
A4 = 688  # its width in pixels, less the margins of the page

NUMBERS = """tables => tables.map(table => ({
  headings: [...table.querySelectorAll("thead th")].map(th => th.innerText),
  entries: [...table.querySelectorAll("td[data-metric]")]
    .map(td => [{...td.dataset}, td.innerText]),
}))"""
CUT = """boxes => boxes.filter(box =>
  getComputedStyle(box).overflowX !== "visible" ||
  [...box.children].some(child => child.getBoundingClientRect().right > innerWidth + 1)
).length"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The report beside its results.json."""
    out = tmp_path_factory.mktemp("report")
    records = cell("stefan", 0.6) + cell("stefan", 0.5) + cell("pme", 6.0)
    pictures = [
        picture("stefan", 0.6, "profiles", 5),
        picture("stefan", 0.6, "mass"),
        picture("pme", 6.0, "time"),
    ]
    sweep, fronts = penalties(0.0, 1.0), positions("stefan", 0.5)
    (out / "results.json").write_text(as_json(records, fronts, sweep))
    said = ["A remark <b>with</b> a_very_long_word_" + "x" * 80]
    page = report(records, sweep, said, pictures, fronts)
    (out / "report.html").write_text(page, encoding="utf-8")
    return out


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, folder):
    """The page, and whatever it asked for or complained of."""
    page, heard = browser.new_page(viewport={"width": 1200, "height": 800}), []
    page.on("request", lambda request: heard.append(request.url))
    page.on("console", lambda message: heard.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: heard.append(f"error: {error}"))
    page.goto((folder / "report.html").as_uri())
    yield page, heard
    page.close()


def test_the_page_asks_for_nothing_and_complains_of_nothing(opened):
    _, heard = opened
    assert heard[0].startswith("file:")
    assert [one for one in heard[1:] if not one.startswith("data:")] == []


@pytest.mark.parametrize("width", [390, 1400, 2000])
def test_the_text_of_every_picture_is_as_large_as_that_of_the_page(opened, width):
    page, _ = opened
    page.set_viewport_size({"width": width, "height": 800})
    panels = page.locator(".panels > svg")
    assert panels.count() == 7
    for panel in panels.all():
        assert 10 * panel.bounding_box()["width"] / 216 >= 16  # 10 of 216 points


def test_a_dark_system_has_a_dark_page_with_light_ink_in_its_pictures(opened):
    page, _ = opened
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 28)"
    label = page.locator(".panels text").first
    assert label.evaluate("text => getComputedStyle(text).fill") == "rgb(228, 232, 236)"


def test_every_number_is_that_of_the_file(opened, folder):
    page, _ = opened
    records = json.loads((folder / "results.json").read_text())["records"]
    by_place = {(r["problem"], f"{r['parameter']:g}", r["method"]): r for r in records}
    shown = 0
    for table in page.locator("table:has([data-metric]):not(#sweep *)").evaluate_all(NUMBERS):
        powers = {heading.split()[0]: power(heading) for heading in table["headings"]}
        for where, text in table["entries"]:
            of = by_place[where["problem"], where["parameter"], where["method"]]
            metric = where["metric"]
            assert_shows(text, of, metric, powers[metric.partition("_")[0]])
            shown += 1
    assert shown == 8 * len(records)


@pytest.mark.parametrize("width", [320, 360, 800])
def test_only_tables_and_pictures_scroll_sideways(opened, width):
    page, _ = opened
    page.set_viewport_size({"width": width, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.locator("#stefan-0\\.6 .box").first
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")


def test_nothing_is_cut_off_in_print(opened):
    page, _ = opened
    page.set_viewport_size({"width": A4, "height": 1000})
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator(".box").evaluate_all(CUT) == 0
    for table in page.locator("table, figure").all():
        assert table.evaluate("table => getComputedStyle(table).breakInside") == "avoid"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_the_records_are_downloaded_as_the_file(opened, folder):
    page, _ = opened
    with page.expect_download() as event:
        page.get_by_role("link", name="Download results.json").click()
    assert event.value.suggested_filename == "results.json"
    assert event.value.path().read_bytes() == (folder / "results.json").read_bytes()
