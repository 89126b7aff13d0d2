"""Docstrings of the public names: numpydoc sections that agree with the signatures."""

import dataclasses
import functools
import importlib
import inspect
import pkgutil

import pytest
from docutils.core import publish_doctree
from docutils.nodes import system_message
from numpydoc.docscrape import NumpyDocString
from numpydoc.docscrape_sphinx import SphinxDocString

import probconserv

STEMS = ("_", "cli")  # private modules, and the command line, which has its own help
CORE = ("support", "fields", "laws", "solvers", "conditioning", "air")  # public by `api` alone
OURS = ("metrics", "fronts")  # of the diagnostics: the others are public by `api` alone


def modules(package):
    for found in pkgutil.iter_modules(package.__path__):
        is_core = found.name in CORE or (
            package.__name__.endswith("diagnostics") and found.name not in OURS
        )
        if not found.name.startswith(STEMS) and not is_core:
            module = importlib.import_module(f"{package.__name__}.{found.name}")
            yield module
            yield from modules(module) if found.ispkg else ()


def is_ours(thing):
    module = getattr(thing, "__module__", None) or ""
    return module.startswith("probconserv") and hasattr(thing, "__qualname__")


@functools.cache
def names():
    """The public classes and functions, by where they are defined."""
    found = {}
    core = importlib.import_module("probconserv.api")
    for module in (core, *modules(probconserv)):
        for name, thing in vars(module).items():
            gathers = module is core or hasattr(module, "__path__")  # names of other files
            here = gathers or getattr(thing, "__module__", "") == module.__name__
            if here and not name.startswith("_") and is_ours(thing):
                found[f"{thing.__module__}.{thing.__qualname__}"] = thing
    return found


@functools.cache
def methods():
    """The public methods and properties of these classes, by class and name."""
    found = {}
    for of, cls in names().items():
        for name in dir(cls) if inspect.isclass(cls) else ():
            raw = inspect.getattr_static(cls, name)
            function = getattr(raw, "__func__", getattr(raw, "fget", raw))
            if not name.startswith("_") and inspect.isfunction(function) and is_ours(function):
                found[f"{of}.{name}"] = raw if isinstance(raw, property) else getattr(cls, name)
    return found


def functions():
    return {name: f for name, f in names().items() if not inspect.isclass(f)}


def classes():
    """All but the exceptions, which take a message."""
    found = {name: c for name, c in names().items() if inspect.isclass(c)}
    return {name: c for name, c in found.items() if not issubclass(c, Exception)}


def parsed(thing):
    return NumpyDocString(inspect.getdoc(thing) or "")


def documented(doc, section):
    return [name for entry in doc[section] for name in entry.name.split(", ")]


def accepted(thing):
    """The names of the arguments, as a docstring writes them."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    given = inspect.signature(thing).parameters.values()
    return [stars.get(p.kind, "") + p.name for p in given if p.name != "self"]


def returns_something(thing):
    return inspect.signature(thing).return_annotation not in (None, "None", "NoReturn")


@pytest.mark.parametrize("kind", [names, methods])
def test_every_public_name_starts_with_one_sentence(kind):
    found = {name: parsed(thing)["Summary"] for name, thing in kind().items()}
    assert not [name for name, said in found.items() if len(said) != 1 or said[0][-1:] != "."]


def test_functions_explain_their_arguments_in_order():
    wrong = [
        n for n, f in functions().items() if documented(parsed(f), "Parameters") != accepted(f)
    ]
    assert not wrong


BASES = ("Family", "Problem", "ClosedForm", "Diffusive", "Box")  # an equation has its parameters


def test_no_signature_hides_its_arguments():
    given = {n: t for n, t in (functions() | classes() | methods()).items() if callable(t)}
    bare = [name for name, thing in given.items() if accepted(thing) == ["*args", "**kwargs"]]
    assert [name for name in bare if name.split(".")[-1] not in BASES] == []


def test_dir_has_the_names_of_the_library_alone():
    shown = [name for name in dir(probconserv) if not name.startswith("__")]
    rooms = "data diagnostics errors experiments fields figures files laws models problems training"
    rooms = [*rooms.split(), "weather"]
    assert [name for name in shown if inspect.ismodule(getattr(probconserv, name))] == rooms
    assert [n for n in shown if n not in rooms and not is_ours(getattr(probconserv, n))] == []
    assert {"condition", "Diagonal", "__version__"} <= set(dir(probconserv))


def test_a_name_that_stands_one_level_down_is_found_there():
    for name in ("diagnostics.front_position", "errors.InputError", "models.load", "fields.Field"):
        with pytest.raises(
            AttributeError, match=rf"has no attribute .*: it is probconserv\.{name}$"
        ):
            getattr(probconserv, name.split(".")[1])
    with pytest.raises(AttributeError, match=r"has no attribute 'condtion'$"):
        probconserv.condtion  # noqa: B018


def test_functions_say_what_they_return():
    given = {name: f for name, f in functions().items() if returns_something(f)}
    assert not [name for name, f in given.items() if not parsed(f)["Returns"]]


def test_every_argument_that_is_explained_has_a_type():
    wrong = []
    for name, thing in (names() | methods()).items():
        doc = parsed(thing)
        every = [*doc["Parameters"], *doc["Attributes"]]
        wrong += [name for entry in every if not entry.type and "**" not in entry.name]
    assert not wrong


def test_methods_with_several_arguments_explain_them_in_order():
    wrong = []
    for name, method in methods().items():
        if isinstance(method, property):
            continue
        said, wanted = documented(parsed(method), "Parameters"), accepted(method)
        if said != wanted and (said or len(wanted) > 1):
            wrong.append(name)
    assert not wrong


def test_classes_explain_their_arguments_or_their_attributes():
    wrong = []
    for name, cls in classes().items():
        doc = parsed(cls)
        said, kept = (documented(doc, section) for section in ("Parameters", "Attributes"))
        held = getattr(cls, "_fields", None)
        if dataclasses.is_dataclass(cls):
            held = [f.name for f in dataclasses.fields(cls) if not f.name.startswith("_")]
        if held is not None:  # a tuple or a dataclass with names
            right = list(held) in (said, kept)
        else:
            right = said == accepted(cls) or (kept and not said)
        wrong += [] if right else [name]
    assert not wrong


@functools.cache
def complaints(text):
    page = str(SphinxDocString(text))
    tree = publish_doctree(page, settings_overrides={"report_level": 5})  # prints nothing
    return [node.astext() for node in tree.findall(system_message)]


def test_docstrings_are_clean_restructured_text():
    every = (names() | methods()).items()
    found = {name: complaints(inspect.getdoc(thing) or "") for name, thing in every}
    assert not {name: said for name, said in found.items() if said}
