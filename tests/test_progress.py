"""What long work says while it runs, and when it cannot go on."""

import io
import sys

import pytest
import torch

import probconserv as pc
from probconserv.solvers import engine as _engine
from probconserv.solvers import iterative as _iterative
from probconserv.solvers import sparse as _sparse
from probconserv.solvers import tridiagonal as _tridiagonal
from probconserv.support.progress import Ticker


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_how_far_it_is_and_the_line_goes_away(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Ticker(after=0.0) as ticker:
        ticker.say("iteration 4")
    assert "iteration 4" in sys.stderr.getvalue()
    assert sys.stderr.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_short_work_and_pipes_see_nothing(stream, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream())
    with Ticker(after=0.0 if stream is io.StringIO else 100.0) as ticker:
        ticker.say("iteration 4")
    assert sys.stderr.getvalue() == ""


def made(monkeypatch):
    """Three cells at two times, to be solved by conjugate gradients."""
    monkeypatch.setattr(_engine, "MOST_DENSE", 0)
    monkeypatch.setattr(_tridiagonal, "WIDEST", 0)
    state = pc.State(u=(torch.ones(2, 3).double().cumsum(0), 1.0), F=(torch.zeros(1, 4), 1.0))
    return state, pc.cell_budgets(pc.Mesh(x=[0.0, 1.0, 2.0, 3.0]), [0.0, 1.0], "F")


def test_long_solves_say_how_far_they_are(monkeypatch):
    state, law = made(monkeypatch)
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(_iterative, "Ticker", lambda: Ticker(after=0.0))
    pc.condition(state, law)
    assert "iteration 0" in sys.stderr.getvalue()


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), RuntimeError("not enough memory")]
)
def test_too_little_memory_is_said_in_words(error, monkeypatch):
    state, law = made(monkeypatch)

    def fails(*_):
        raise error

    monkeypatch.setattr(_iterative.Iterative, "product", fails)
    with pytest.raises(pc.ProbConservError, match="not enough memory for 3 rows"):
        pc.condition(state, law)


def test_other_errors_pass_as_they_are(monkeypatch):
    state, law = made(monkeypatch)

    def fails(*_):
        raise RuntimeError("something else")

    monkeypatch.setattr(_iterative.Iterative, "product", fails)
    with pytest.raises(RuntimeError, match="something else"):
        pc.condition(state, law)


def test_a_limit_of_iterations_is_an_error_that_says_so(monkeypatch):
    state, law = made(monkeypatch)
    monkeypatch.setattr(_sparse, "MOST_ROWS", 0)
    monkeypatch.setattr(_iterative, "SOON", 0)
    monkeypatch.setattr(_iterative, "LIMIT", 1)
    with pytest.raises(
        pc.errors.InfeasibleError, match="`cell budgets of u, F` cannot be met after"
    ):
        pc.condition(state, law)
