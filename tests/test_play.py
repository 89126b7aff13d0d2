"""The page that runs in the browser: its graphs, and the page itself in Debian's chromium."""

import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch
from seeds import generator, seeded

import probconserv as pc
from probconserv.diagnostics.fronts import RULES
from probconserv.models import load
from probconserv.problems import Stefan

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "play"))

import graphs  # noqa: E402
import make_page  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NAME, PROBLEM, TIME = "stefan", Stefan(u_star=0.6), 9
CLOSE = 1e-4
MINUS = "\N{MINUS SIGN}"


def library(observations, b, sigma, method):
    """What the library makes of the same: components, field and law."""
    t = graphs.times(NAME)
    context = tuple(torch.tensor(observations).double().T)
    generator = torch.Generator().manual_seed(0)
    parts = load(NAME).predict(context, (t, graphs.X), graphs.SAMPLES, generator)
    law = pc.integral(graphs.X, torch.tensor(b).double(), noise=sigma)
    exact = pc.integral(graphs.X, torch.tensor(b).double())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pc.ImplausibleWarning)
        chosen = graphs.METHODS[method]
        return parts, chosen.update(parts, exact if chosen.exact else law, graphs.X), law


@pytest.fixture(scope="module")
def sessions():
    with seeded():  # torch draws examples as it exports
        made = {
            "step2": make_page.cached("step2", graphs.step2_graph),
            NAME: make_page.cached(NAME, lambda: graphs.network_graph(NAME)),
        }
    return {name: onnxruntime.InferenceSession(graph) for name, graph in made.items()}


@pytest.fixture(scope="module")
def found(sessions):
    """A network and Step 2 under onnxruntime, with a total that is wrong at one time."""
    t, rng = graphs.times(NAME), torch.Generator().manual_seed(3)
    at = torch.randint(0, graphs.POINTS, (12,), generator=rng)
    known = [(float(t[k]), float(graphs.X[i])) for k, i in enumerate(at)]
    seen = [(*place, float(PROBLEM.solution(*place))) for place in known]
    truth, b = PROBLEM.on_grid(t, graphs.X), PROBLEM.total(t)
    b[TIME] += 0.2
    given = {"observations": torch.tensor(seen).float(), "places": graphs.places(NAME)}
    means, variances = sessions[NAME].run(None, {k: v.numpy() for k, v in given.items()})
    sigma, level = torch.full_like(b, 0.001), torch.tensor(0.3).double()
    inputs = (b, sigma, truth, level, graphs.example()[-1])
    names = [each.name for each in sessions["step2"].get_inputs()]
    feeds = dict(zip(names, [means, variances, *(v.numpy() for v in inputs)], strict=True))
    outputs = sessions["step2"].run(None, feeds)
    results = dict(
        zip([*graphs.RESULTS, *graphs.DIAGNOSIS], map(torch.tensor, outputs), strict=True)
    )
    return seen, b, truth, torch.tensor(means), results


@pytest.mark.parametrize("method", graphs.METHODS)
def test_the_graphs_give_what_the_library_gives(found, method):
    seen, b, truth, means, results = found
    parts, field, _ = library(seen, b.tolist(), 0.001, method)
    mine = {name: results[name][[*graphs.METHODS].index(method)] for name in graphs.RESULTS}
    torch.testing.assert_close(means, parts.mean, atol=CLOSE, rtol=0)
    torch.testing.assert_close(mine["field"], field.mean, atol=CLOSE, rtol=CLOSE)
    torch.testing.assert_close(mine["variance"], field.variance, atol=CLOSE, rtol=CLOSE)
    scores = pc.evaluate(field, truth, pc.integral(graphs.X, b), samples=1, generator=generator())
    torch.testing.assert_close(mine["CE"], scores.CE, atol=1e-6, rtol=0)
    torch.testing.assert_close(mine["LL"], scores.LL, atol=CLOSE, rtol=CLOSE)


def test_the_graph_draws_fronts_as_the_library_does(found):
    seen, b, _, _, results = found
    _, field, _ = library(seen, b.tolist(), 0.001, "ProbConserv-ANP")
    count = field.components.normals_per_draw
    draws = field.components.sample_with(graphs.example()[-1][:, :count])
    fronts = RULES["crossing"](draws, graphs.X, torch.tensor(0.3).double())
    mine = results["fronts"][[*graphs.METHODS].index("ProbConserv-ANP")]
    torch.testing.assert_close(mine, fronts, atol=1e-3, rtol=0, equal_nan=True)


def test_the_graph_diagnoses_as_the_library_does(found):
    seen, b, _, _, results = found
    parts, _, law = library(seen, b.tolist(), 0.001, "ANP")
    said = pc.diagnose(pc.Mixture(parts).gaussian(), law)
    torch.testing.assert_close(results["z_full"], said.z_full, atol=1e-3, rtol=1e-4)
    assert results["wrong"].bool().tolist() == said.wrong.tolist()
    assert float(results["move"]) == pytest.approx(said.largest_move, rel=1e-3)
    held = {k for k, row in zip(graphs.CAUSES, results["causes"], strict=True) if row[2]}
    assert {cause.kind for cause in said.causes} <= held


def test_a_missing_npm_is_told_from_other_errors(tmp_path, monkeypatch):
    monkeypatch.setattr(make_page, "CACHE", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(make_page.NoPackagesError, match="built with npm"):
        make_page.package("onnxruntime-web")


@pytest.fixture(scope="module")
def folder(sessions, tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no chromium here: the page is not opened")
    out = tmp_path_factory.mktemp("play")
    try:
        make_page.build(out, [NAME])
    except make_page.NoPackagesError as error:
        pytest.skip(str(error))
    return out


@pytest.fixture(scope="module")
def opened(folder):
    """The page after its first update, and whatever it asked for or complained of."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page, heard = browser.new_page(viewport={"width": 1200, "height": 900}), []
        page.on("request", lambda request: heard.append(request.url))
        page.on("console", lambda message: heard.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        page.goto((folder / "index.html").as_uri())
        page.wait_for_function("page.updates > 0", timeout=60_000)
        yield page, heard
        browser.close()


SHOWN = """() => {
  const {observations, b, sigma, shown, x, method} = page.state;
  const {times} = page.state.facts();
  const results = page.results();
  return {
    seen: observations.map((o) => [times[o.k], x[o.i], o.u]), b, sigma, shown, method,
    mean: row(results.field, method, shown), variance: row(results.variance, method, shown),
    z: [...results.z_full.data],
    CE: row(results.CE, method)[shown], LL: row(results.LL, method)[shown],
    cells: [...document.querySelectorAll("#methods tr.chosen td")].map((td) => td.innerText),
    verdict: document.getElementById("verdict").innerText,
  };
}"""


def settle(page):
    page.wait_for_function("!busy && !stale.network && !stale.law", timeout=30_000)
    return page.evaluate(SHOWN)


def drag(page, handle, right, down):
    box = page.locator(handle).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + right / 2, y + down / 2)
    page.mouse.move(x + right, y + down)
    page.mouse.up()


def check_against_library(shown):
    method = [*graphs.METHODS][shown["method"]]
    parts, field, law = library(shown["seen"], shown["b"], shown["sigma"], method)
    points, at = field.gaussian(), shown["shown"]
    torch.testing.assert_close(
        torch.tensor(shown["mean"]).double(), points.mean[at], atol=CLOSE, rtol=CLOSE
    )
    torch.testing.assert_close(
        torch.tensor(shown["variance"]).double(), points.variance[at], atol=CLOSE, rtol=CLOSE
    )
    truth = PROBLEM.on_grid(graphs.times(NAME), graphs.X)
    exact = pc.integral(graphs.X, shown["b"])
    scores = pc.evaluate(field, truth, exact, samples=1, generator=generator())
    assert shown["CE"] == pytest.approx(float(scores.CE[at]), abs=CLOSE)
    assert shown["LL"] == pytest.approx(float(scores.LL[at]), abs=CLOSE, rel=CLOSE)
    number = [float(cell.replace(MINUS, "-")) for cell in shown["cells"][1:3]]
    assert number == pytest.approx([shown["CE"], shown["LL"]], abs=0.006, rel=CLOSE)
    said = pc.diagnose(pc.Mixture(parts).gaussian(), law)
    torch.testing.assert_close(torch.tensor(shown["z"]).double(), said.z_full, atol=1e-3, rtol=1e-3)
    agrees = said.verdict.startswith("b agrees")
    assert shown["verdict"].startswith("b agrees" if agrees else "b does not agree")


def test_what_is_shown_at_first_is_what_the_library_says(opened):
    page, _ = opened
    shown = settle(page)
    check_against_library(shown)
    assert "agrees" in shown["verdict"]


def test_dragging_an_observation_changes_the_field_as_in_the_library(opened):
    page, _ = opened
    before = settle(page)
    drag(page, "#field .handle >> nth=1", 40, -60)
    after = settle(page)
    assert after["seen"] != before["seen"]
    assert after["mean"] != before["mean"]
    check_against_library(after)


def test_dragging_the_total_changes_the_field_as_in_the_library(opened):
    page, _ = opened
    before = settle(page)
    drag(page, "#totals .handle.chosen", 0, -70)
    after = settle(page)
    assert after["b"][before["shown"]] > before["b"][before["shown"]] + 0.03
    check_against_library(after)


def test_wrong_units_are_told_from_one_wrong_total(opened):
    page, _ = opened
    page.get_by_role("button", name="Start again").click()
    right = settle(page)["b"][TIME]
    page.evaluate(f"edit.total({TIME}, {3 * right}, true)")
    after = settle(page)
    check_against_library(after)
    parts, _, law = library(after["seen"], after["b"], 0.0, "ANP")
    assert pc.diagnose(pc.Mixture(parts).gaussian(), law).causes[0].kind == "factor"
    assert "times what the prediction says, check its units" in after["verdict"]
    page.evaluate(f"edit.total({TIME}, {right}, true); edit.total({TIME}, {2 * right})")
    assert "check t = 0.05 (the others agree)" in settle(page)["verdict"]


def test_every_method_and_noise_is_as_in_the_library(opened):
    page, _ = opened
    page.locator("#sigma").evaluate("e => { e.value = 30; e.dispatchEvent(new Event('input')); }")
    for name in graphs.METHODS:
        page.locator(f"#methods input[value='{name}']").check()
        check_against_library(settle(page))
    page.get_by_role("button", name="Start again").click()
    settle(page)


def test_arrow_keys_move_what_has_the_focus(opened):
    page, _ = opened
    before = settle(page)
    handle = page.locator("#field .handle").first
    handle.focus()
    page.keyboard.press("ArrowRight")
    page.locator("#totals .handle.chosen").focus()
    page.keyboard.press("ArrowUp")
    after = settle(page)
    assert sorted(after["seen"]) != sorted(before["seen"])
    assert after["b"][after["shown"]] == pytest.approx(before["b"][before["shown"]] + 0.002)
    assert page.locator(":focus").get_attribute("aria-label").startswith("Total b at t = 0.05")


def test_a_phone_shows_all_of_it_without_scrolling_sideways(opened):
    page, _ = opened
    page.set_viewport_size({"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.set_viewport_size({"width": 1200, "height": 900})


def test_nothing_leaves_the_machine_and_nothing_is_complained_of(opened):
    page, heard = opened
    settle(page)
    assert heard[0].startswith("file:")
    assert [one for one in heard if not one.startswith(("file:", "blob:", "data:"))] == []
