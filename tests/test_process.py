"""How the commands on files set up their process and leave it."""

import io
import os
import sys

import pytest

from probconserv import __main__ as program
from probconserv.cli import files as cli_files
from probconserv.cli import main as cli


class Unread(io.StringIO):
    """The stream of a reader that has enough."""

    def flush(self):
        raise BrokenPipeError


@pytest.fixture
def left(monkeypatch):
    """Statuses with which the process would have ended."""
    statuses = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    return statuses


@pytest.mark.parametrize(("stream", "status"), [(io.StringIO, 1), (Unread, 141)])
def test_a_process_leaves_with_its_status_or_that_of_a_closed_pipe(stream, status, left):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stream())
        program._leave(1)
    assert left == [status]


@pytest.mark.parametrize("code", [None, 0, 1])
def test_only_check_and_enforce_leave_without_taking_libraries_down(code, left, monkeypatch):
    def ended():
        raise SystemExit(code)

    monkeypatch.setattr(cli, "main", ended)
    for command in ("check", "enforce"):
        monkeypatch.setattr(sys, "argv", ["probconserv", command])
        program.main()
    assert left == [code or 0] * 2
    monkeypatch.setattr(sys, "argv", ["probconserv", "problems"])
    with pytest.raises(SystemExit):
        program.main()
    assert len(left) == 2


def test_the_c_library_is_told_to_keep_what_blocks_free(monkeypatch):
    told = {}

    class Glibc:
        def __init__(self, name):
            self.mallopt = told.__setitem__

    monkeypatch.setattr(cli_files.ctypes, "CDLL", Glibc)
    cli_files._settle_memory()
    assert told == {-1: 2**29, -3: 2**29, -8: 1}  # trim and mmap thresholds, arenas: malloc.h


def test_another_c_library_is_left_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(cli_files.ctypes, "CDLL", asked.append)  # gives None, without mallopt
    cli_files._settle_memory()
    assert asked == [None]
