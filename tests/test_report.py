import base64
import json
import re
from html.parser import HTMLParser

import pytest
from pages import assert_shows, cell, penalties, picture, positions, power, record

from probconserv.diagnostics import best
from probconserv.experiments.paper import METHODS
from probconserv.experiments.paper._report import report
from probconserv.experiments.paper._tables import standings

METRICS = ("CE", "LL", "MSE", "CRPS", "energy", "coverage_50", "coverage_90", "coverage_99")
VOID = ("meta", "link", "br", "img")


class Outline(HTMLParser):
    """Every tag with its attributes; complains of tags that are closed out of turn."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags = [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


def tables(page):
    """The powers of ten of each table, and its numbers: (attributes, inner HTML)."""
    for text in re.findall(r"<table>.*?</table>", page, re.DOTALL):
        headings = re.findall(r'<th scope="col[^>]*>(.*?)</th>', text, re.DOTALL)
        powers = {heading.split("<")[0].split()[0]: power(heading) for heading in headings}
        entries = re.findall(r"<td (data-[^>]*)>(.*?)</td>", text)
        yield powers, [(dict(re.findall(r'data-(\w+)="(.*?)"', a)), inner) for a, inner in entries]


def row(page, name, table=0):
    """What the row of a table says, without tags and with plain signs."""
    text = re.findall(r"<table>.*?</table>", page, re.DOTALL)[table]
    (found,) = re.findall(rf">{re.escape(name)}</th>(.*?)</tr>", text, re.DOTALL)
    return re.sub("<.*?>", "", found).replace("\N{MINUS SIGN}", "-").split("\n")[1:-1]


def test_every_number_of_a_record_is_shown_once():
    records = cell("stefan", 0.6) + cell("advection", 3.0)
    by_place = {(r["problem"], f"{r['parameter']:g}", r["method"]): r for r in records}
    shown = []
    for powers, entries in tables(report(records, [], [], [])):
        for where, inner in entries:
            place = where["problem"], where["parameter"], where["method"]
            scale = powers[where["metric"].partition("_")[0]]
            assert_shows(re.sub("<.*?>", "", inner), by_place[place], where["metric"], scale)
            shown.append((*place, where["metric"]))
    assert sorted(shown) == sorted((*place, metric) for place in by_place for metric in METRICS)


def test_a_row_has_our_numbers_and_those_of_the_paper():
    page = report(cell("stefan", 0.6), [], [], [])
    assert row(page, "ANP") == [
        *("-1.310 (0.026)", "-1.30 (0.01)", "3.500 (0.070)", "3.53 (0.00)"),
        *("5.400 (0.108)", "5.38 (0.01)", "3.100", "0.510", "48.0", "88.0", "97.0"),
    ]
    assert row(page, "ProbConserv-ANP")[:2] == ["0", "0"]


def test_bold_is_what_the_rule_of_the_paper_says():
    records = cell("stefan", 0.6)
    ((_, entries),) = tables(report(records, [], [], []))
    for where, inner in entries:
        (of_method,) = (r for r in records if r["method"] == where["method"])
        assert inner.startswith("<strong>") == best(of_method, records, where["metric"])


def test_a_method_without_weights_has_dashes_beside_the_paper():
    methods = [method for method in METHODS if method != "SoftC-ANP"]
    page = report(cell("diffusion", 1.0, methods), [], [], [])
    assert row(page, "SoftC-ANP") == [
        *("-", "0.347 (0.017)", "-", "2.40 (0.02)", "-", "0.224 (0.078)"),
        *["-"] * 5,
    ]
    assert 'data-method="SoftC-ANP"' not in page
    assert row(page, "ProbConserv-ANP (w/diff)")[3] == "-"


def test_the_paper_is_quoted_with_its_warning():
    page = report(cell("diffusion", 1.0) + cell("burgers", 1.0), [], [], [])
    assert "* Beside the paper: the published solutions were taken at wrong times" in page
    assert page.count("paper*</th>") == 3
    assert page.count("The paper has no numbers for this parameter.") == 1


def test_parameters_outside_the_training_range_are_named():
    page = report(cell("stefan", 0.6) + cell("stefan", 0.5), [], [], [])
    (said,) = re.findall(r"<p>(.*) lies outside the training range, (.*):", page)
    assert said == ("u<sub>star</sub> = 0.5", "0.55 to 0.7")


def test_the_protocol_is_explained():
    records = cell("stefan", 0.6)
    page = report(records, [], [], [])
    assert "7 test functions for each parameter, 11 latent samples" in page
    assert "dropout is off" in page
    theirs = [one | {"protocol": "paper", "recipe": "paper"} for one in records]
    assert "dropout stays on" in report(theirs, [], [], [])


def test_the_sweep_stands_beside_the_published_one():
    page = report(cell("stefan", 0.6), penalties(0.0, 5.0, 100.0), [], [])
    found = list(tables(page))
    assert len(found) == 4
    assert [len(entries) for _, entries in found[1:]] == [0, 9, 0]
    assert {where["penalty"] for where, _ in found[2][1]} == {"0", "5", "100"}
    assert row(page, "0", table=2)[:4] == ["-1.310 (0.026)", "-0.123", "3.500 (0.070)", "3.67"]
    assert row(page, "0.01", table=2) == ["-", "-0.061", "-", "3.46", "-", "0.203"]
    assert row(page, "5", table=2)[1::2] == ["-", "-", "-"]
    assert row(page, "10", table=3) == ["-", "-3.02", "-", "3.49", "-", "7.76"]


def test_the_published_sweep_is_there_without_ours_where_its_equation_is():
    assert 'id="sweep"' in report(cell("pme", 1.0), [], [], [])
    assert 'id="sweep"' not in report(cell("stefan", 0.6), [], [], [])


def test_what_is_said_is_text_and_not_html():
    nasty = "<script>alert('&')</script>"
    records = cell("stefan", 0.6)
    page = report(records, [], [nasty], [picture("stefan", 0.6, caption=f'"{nasty}')])
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(&#39;&amp;&#39;)&lt;/script&gt;") == 2


def test_pictures_are_inside_the_page_in_their_places():
    pictures = [
        picture("stefan", 0.6, "profiles", 2, "Profiles."),
        picture("stefan", 0.6, "mass", caption="Mass."),
        picture("stefan", 0.55, "front", caption="A front without a table."),
    ]
    page = report(cell("stefan", 0.6), [], [], pictures)
    assert all(panel in page for one in pictures for panel in one.panels)
    shown = Outline(page).all("figure")
    assert [one["class"] for one in shown] == ["profiles", "mass", "front"]
    assert [one["style"] for one in shown] == [f"--panels: {n}" for n in (2, 1, 1)]
    assert page.index('id="stefan-0.55"') < page.index("A front without a table.")


def test_a_panel_has_the_ink_and_the_font_of_the_page_and_ids_of_its_own():
    one, other = picture("stefan", 0.6, count=2).panels
    assert "currentColor" in one
    assert "#000000" not in one
    assert "font-family" not in one
    assert ">total of u</text>" in one
    assert ">ANP</text>" not in one  # the legend is the page's
    ids = [set(re.findall(r' id="(.*?)"', panel)) for panel in (one, other)]
    assert ids[0]
    assert ids[0].isdisjoint(ids[1])
    assert set(re.findall(r"#(stefan[^\")]*)", one)) <= ids[0]


def test_the_page_begins_with_what_came_out_then_remarks_then_cells():
    page = report(cell("stefan", 0.6), [], ["A remark."], [], overview=["<svg></svg>"])
    parts = [one.get("id") for one in Outline(page).all("section")]
    assert parts[:5] == ["overview", "remarks", "reading", "stefan", "stefan-0.6"]
    assert page.index("<svg></svg>") < page.index('id="remarks"')


def test_the_first_table_counts_the_cases_of_each_method():
    records = cell("stefan", 0.6) + cell("pme", 3.0, ["ANP", "ProbConserv-ANP"])
    by_method = {one.method: one for one in standings(records)}
    assert by_method["ProbConserv-ANP"][1:5] == (2, 2, 1, 1)
    assert by_method["ANP"][1:3] == (2, 0)
    assert by_method["SoftC-ANP"].cases == 1
    assert by_method["ProbConserv-ANP"].share == (0.375, 0.25, 0.5)
    assert by_method["ANP"].share is None


def test_the_page_needs_nothing_else():
    page = report(cell("stefan", 0.6), penalties(1.0), ["A remark."], [picture("stefan", 0.6)])
    assert re.search("https?:|//|@import|<script", re.sub(r"base64,[^\"]*", "", page)) is None
    assert re.findall(r'(?:src|href)="(?!#|data:)', page) == []


def test_the_tags_and_links_of_the_page_are_in_order():
    page = report(cell("pme", 1.0), penalties(1.0), ["A remark."], [picture("pme", 1.0)])
    outline = Outline(page)
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [one["href"] for one in outline.all("a")]
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert len(outline.all("h1")) == 1
    assert all("scope" in heading for heading in outline.all("th"))
    assert len(outline.all("caption")) == len(outline.all("table")) == 5
    assert outline.all("html") == [{"lang": "en"}]


def test_the_results_can_be_taken_from_the_page():
    records, sweep, fronts = cell("stefan", 0.6), penalties(1.0), positions("stefan", 0.6)
    page = report(records, sweep, [], [], fronts)
    (link,) = (one for one in Outline(page).all("a") if "download" in one)
    content = json.loads(base64.b64decode(link["href"].partition(",")[2]))
    assert content == {"schema": 1, "records": records, "fronts": fronts, "sweep": sweep}


def test_fronts_have_a_row_for_each_method():
    fronts = positions("stefan", 0.6)
    page = report(cell("stefan", 0.6) + cell("pme", 1.0), [], [], [], fronts)
    assert page.count('<table class="fronts">') == 1
    assert "the true one is at x = 0.2351" in page
    shown = re.findall(r'data-front="(\w+)-(\w+)">(.*?)<', page)
    assert [text for _, part, text in shown if part == "mean"] == [
        f"{record['mean']:.4f}" for record in fronts
    ]
    assert {text for _, part, text in shown if part == "none"} == {"2.5"}
    assert len(shown) == 3 * len(fronts)


def test_numbers_of_any_size_are_shown():
    large = {"LL": -2214.98, "LL_se": 30.0, "MSE": 12.5, "MSE_se": 0.25}
    odd = record("stefan", 0.6, "ANP", CE=float("nan"), CE_se=1.0, CRPS=0.0, **large)
    assert row(report([odd], [], [], []), "ANP")[:8:2] == [
        *("nan (1.000)", "-2214.980 (30.000)", "12.500 (0.250)", "0.000"),
    ]


def test_a_page_of_nothing_is_refused():
    with pytest.raises(ValueError, match="`records` must hold at least one record"):
        report([], [], [], [])
