"""The built site, read as a browser would, without one; and the pages that must be complete."""

import ast
import inspect
import pydoc
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest
from blocks import DOCS, ROOT, SITE, built

import probconserv

SOURCE = ROOT / "src" / "probconserv"
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
PARTS = "figures", "weather", "files", "models"
PARTS += "experiments/paper", "problems", "training"


@dataclass
class Page(HTMLParser):
    """What is checked of a page: its title, headings, pictures, links, and what it loads."""

    path: Path
    title: str = ""
    headings: list[int] = field(default_factory=list)
    alts: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self):
        super().__init__()
        self.inside = ""
        self.feed(self.path.read_text())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.inside = tag
        self.anchors |= {given["id"]} if "id" in given else set()
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "img":
            self.alts.append(given.get("alt") or "")
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        loaded = given.get("href" if tag == "link" else LOADS.get(tag, ""))
        if loaded and given.get("rel") not in ("canonical", "author"):
            self.loads.append(loaded)

    def handle_data(self, data):
        self.title += data if self.inside == "title" else ""


@pytest.fixture(scope="module")
def pages():
    """All pages of the site, by their paths."""
    apart = SITE / "play", SITE / "_static"
    paths = [p for p in built().rglob("*.html") if not any(map(p.is_relative_to, apart))]
    return {path.resolve(): Page(path) for path in paths}


def missing(page, link, pages):
    """Whether a link within the site has no target."""
    target, _, anchor = unquote(link).partition("#")
    if re.match(r"[a-z]+:", target) or target.startswith("play/"):
        return False
    path = (page.path.parent / target).resolve() if target else page.path.resolve()
    return not path.exists() or bool(anchor and path in pages and anchor not in pages[path].anchors)


def test_every_page_has_a_title_and_headings_in_order(pages):
    assert len(pages) > 60
    for page in pages.values():
        assert page.title.strip(), page.path
        assert page.headings.count(1) == 1, page.path
        steps = list(pairwise(page.headings))
        assert all(after - before <= 1 for before, after in steps), (page.path, page.headings)


def test_every_picture_says_what_it_shows(pages):
    assert [page.path for page in pages.values() if "" in page.alts] == []


def test_every_link_within_the_site_has_a_target(pages):
    wrong = [
        (p.path.name, link) for p in pages.values() for link in p.links if missing(p, link, pages)
    ]
    assert wrong == []


def test_nothing_is_loaded_from_elsewhere(pages):
    for page in pages.values():
        assert [url for url in page.loads if re.match(r"(https?:)?//", url)] == []
        assert [url for url in page.loads if missing(page, url.split("?")[0], pages)] == []
    for sheet in SITE.rglob("*.css"):
        assert not re.search(r"url\(\W*(https?:)?//|@import\W+(https?:)?//", sheet.read_text())


def test_no_template_is_left_in_the_site():
    assert [path for path in built().rglob("*.html") if "{%" in path.read_text()] == []


def test_pages_are_small(pages):
    for page in pages.values():
        sources = re.findall(r'<img[^>]+src="([^"?]+)', page.path.read_text())
        pictures = {(page.path.parent / source).resolve() for source in sources}
        files = [page.path, *(path for path in pictures if path.exists())]
        assert sum(path.stat().st_size for path in files) < 1_000_000, page.path


def listed():
    """The names in the reference, with their modules, and what the page says of them."""
    text = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    blocks = re.findall(r"```\{names\} (\S+)\n(.*?)```", text, re.DOTALL)
    lines = [f"{module}.{line}" for module, names in blocks for line in names.splitlines()]
    return [tuple(line.partition(": ")[::2]) for line in lines]


def reexported(path):
    """The names that a module gives its users: `from ._x import X as X`."""
    nodes = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ImportFrom)]
    return [a.name for n in nodes if n.module for a in n.names if a.asname == a.name]


def defined(module):
    """Public functions and classes of a module that is one file."""
    found = vars(import_module(module))
    return [k for k, v in found.items() if k[0] != "_" and getattr(v, "__module__", "") == module]


def looked_up(name):
    module, _, last = name.rpartition(".")
    return getattr(import_module(module), last)


def test_every_public_name_is_in_the_reference_once():
    files = {
        f"probconserv.{part.replace('/', '.')}": SOURCE / part / "__init__.py" for part in PARTS
    }
    files["probconserv"] = SOURCE / "api.py"
    public = [f"{module}.{name}" for module, path in files.items() for name in reexported(path)]
    modules = "probconserv.data", "probconserv.diagnostics.metrics"
    modules += tuple(f"probconserv.weather.{each}" for each in ("ace", "credit", "testbed"))
    public += [f"{module}.{name}" for module in modules for name in defined(module)]
    names = [name for name, _ in listed()]
    known = {id(looked_up(name)) for name in names}
    assert len(names) == len(set(names)) == len(known)
    assert [name for name in public if id(looked_up(name)) not in known] == []


def takes(thing):
    """The arguments of a function or a class, without `self`."""
    return [name for name in inspect.signature(thing).parameters if name not in ("self", "cls")]


def test_every_class_and_function_shows_its_arguments(pages):
    """Without any are those that take none, and the classes that others derive from."""
    text = "".join(page.path.read_text() for page in pages.values())
    heads = re.findall(r'<dt class="sig[^"]*" id="(probconserv[^"]+)">(.*?)</dt>', text, re.DOTALL)
    shown = {name: re.sub(r"<[^>]+>|\s", "", head) for name, head in heads}
    assert len(shown) > 300
    unwritten = r"\*args|&lt;|mappingproxy"  # what nobody would write
    assert [name for name, head in shown.items() if re.search(unwritten, head)] == []
    bare = [name for name, head in shown.items() if f"{name.rpartition('.')[2]}()" in head]
    assert [name for name in bare if len(takes(pydoc.locate(name))) > 0] == []


def test_what_has_no_docstring_has_words_on_the_page():
    for name, words in listed():
        thing = looked_up(name)
        assert bool(words) != (inspect.isclass(thing) or inspect.isroutine(thing)), name


def test_every_example_is_in_the_gallery_with_its_picture():
    cards = (DOCS / "gallery" / "index.md").read_text()
    for path in (ROOT / "examples").glob("*.py"):
        page = (DOCS / "gallery" / f"{path.stem}.md").read_text()
        assert f"../../examples/{path.name}" in page
        assert f":link: {path.stem}\n" in cards
        assert (DOCS / "pictures" / f"{path.stem}.png").exists()


def messages():
    """All texts of the source, with dots for what is filled in."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
                yield "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_the_messages_on_the_page_of_errors_are_those_of_the_source():
    quoted = re.findall(r"^> (.+)$", (DOCS / "errors.md").read_text(), re.MULTILINE)
    source = "\n".join(messages())
    words = [part.strip() for line in quoted for part in line.split("…") if len(part.strip()) > 3]
    assert len(quoted) > 30
    assert [part for part in words if part not in source] == []


def test_the_citation_names_this_version_and_the_paper():
    said = (ROOT / "CITATION.cff").read_text()
    paper = "Learning Physical Models that Can Respect Conservation Laws"
    assert f"\nversion: {probconserv.__version__}\n" in said
    assert all(paper in text for text in (said, (DOCS / "citing.md").read_text()))
