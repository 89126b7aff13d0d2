"""Where dask works: so many threads, and a bar on a terminal."""

import io
import sys

import dask
import dask.array as da
import pytest

from probconserv.errors import InputError
from probconserv.files import _graph


def test_as_many_threads_work_as_are_asked_for():
    with _graph.threads(1):
        assert dask.config.get("num_workers") == 1
        assert dask.config.get("scheduler") is dask.threaded.get
    with pytest.raises(InputError, match="`workers` must be a positive whole number, got 0"):
        _graph.threads(0).__enter__()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "seen"), [(Terminal(), True), (io.StringIO(), False)])
def test_progress_is_seen_on_a_terminal_only(monkeypatch, stream, seen):
    monkeypatch.setattr(_graph, "SLOW", 0.0)
    monkeypatch.setattr(sys, "stderr", stream)
    with _graph.threads():
        assert _graph.compute({"n": da.ones(9, chunks=3).sum()}) == {"n": 9.0}
    assert ("100% Completed" in stream.getvalue()) == seen
