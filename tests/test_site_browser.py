"""Main pages of the site in Debian's chromium: wide and narrow, light and dark."""

import shutil

import pytest
from blocks import SITE, built

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
MAIN = "index", "start", "learn/method", "research/results", "reference/fields", "errors"

# Texts that stand out too little from what is behind them, by the rule of WCAG 2 AA.
FAINT = """() => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = box => {
    for (; box; box = box.parentElement) {
      const colour = numbers(getComputedStyle(box).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.5) return colour;
    }
    return [255, 255, 255];
  };
  const faint = new Set();
  const walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const box = walk.currentNode.parentElement, style = getComputedStyle(box);
    if (!walk.currentNode.data.trim() || !box.checkVisibility({visibilityProperty: true})) continue;
    if (box.closest(".headerlink, script, style")) continue;
    const [a, b] = [light(numbers(style.color)), light(behind(box))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5))
      faint.add(`${walk.currentNode.data.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return [...faint];
}"""


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    built()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1400)])
def test_pages_fit_are_readable_and_load_nothing_foreign(browser, scheme, width):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    asked, failed = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: failed.append(str(error)))
    for name in MAIN:
        page.goto((SITE / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate(FAINT) == [], name
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert failed == []


def test_a_message_is_found_by_searching_its_words(browser):
    page = browser.new_page()
    page.goto((SITE / "search.html").as_uri() + "?q=Nothing+is+left+to+move+there")
    page.wait_for_selector("ul.search li a[href^='errors.html']", timeout=20_000)
