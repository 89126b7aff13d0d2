import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # workers share the processors: no spinning
os.environ.setdefault("NUMBA_DISABLE_JIT", "1")  # py-pde compiles for longer than it computes
os.environ.setdefault(  # torch takes what it compiled for other instructions, and g++ refuses that
    "TORCHINDUCTOR_CACHE_DIR",
    str(
        Path(__file__).parents[1] / "build/inductor" / os.environ.get("ATEN_CPU_CAPABILITY", "own")
    ),
)

import hypothesis
import pytest
import torch
from seeds import SEED, generator, start_all, states

hypothesis.settings.register_profile(
    "default", deadline=None, max_examples=30, derandomize=not SEED, database=None
)
hypothesis.settings.load_profile("default")
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
collect_ignore = ["standins"]
FREE = pytest.StashKey[dict[str, object]]()
TOGETHER = {  # in one process of `pytest -n`: what the tests of such a file share is made once
    "test_ablate.py",
    "test_climate_files.py",
    "test_fixers_sharded.py",
    "test_heat_budget.py",
    "test_package.py",
    "test_paper.py",
    "test_play.py",
    "test_report_browser.py",
    "test_sharded.py",
    "test_site.py",
    "test_site_browser.py",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Not by the mark `xdist_group`: xdist 3.8 writes it where pytest 9.2 no longer looks."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            path = nodeid.split("::")[0]
            return path if os.path.basename(path) in TOGETHER else nodeid

    return Scheduling(config, log)


def pytest_configure(config):
    config.addinivalue_line("markers", "draws_freely(why): runs code of users or others")


def pytest_collection_modifyitems(items):
    """A random problem of another seed need not be plausible, and its test is not about that."""
    for item in items if SEED else ():
        item.add_marker(pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    start_all()
    item.stash[FREE] = states()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """A test that draws from a generator that is nobody's fails: it hangs on what ran before."""
    result = yield
    if not (isinstance(item, pytest.DoctestItem) or item.get_closest_marker("draws_freely")):
        after = states()
        moved = [name for name, before in item.stash[FREE].items() if after[name] != before]
        assert not moved, f"drew from the global generator of {moved}; see tests/seeds.py"
    return result


@pytest.fixture
def rng() -> torch.Generator:
    return generator(20)
