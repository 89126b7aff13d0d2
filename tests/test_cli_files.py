"""`probconserv enforce` and `probconserv check` as a user calls them."""

import numpy as np
import pytest
import xarray as xr
from commands import called

from probconserv.cli.main import main

ASKED = ("--mean", "u", "--over", "lat", "lon")


@pytest.fixture
def source(tmp_path):
    rng = np.random.default_rng(8)
    u = rng.normal(3.0, 0.5, (5, 4, 3))
    grid = ("time", "lat", "lon")
    dataset = xr.Dataset(
        {
            "u": (grid, u),
            "v": (grid, u**2),
            "u_std": (grid, np.full(u.shape, 0.3)),
            "rain": ("time", np.full(5, 1e9)),
            "basin": (("lat", "lon"), np.arange(12).reshape(4, 3) // 7),
        },
        {"time": np.arange(5) * 10.0, "lat": [-30.0, -10.0, 10.0, 30.0], "lon": [0.0, 5.0, 10.0]},
    )
    dataset.to_netcdf(tmp_path / "in.nc")
    return tmp_path / "in.nc"


def refused(capsys, *arguments, status="2"):
    """What the command says on stderr before it exits, in this process."""
    with pytest.raises(SystemExit, match=status):
        main(arguments)
    return capsys.readouterr().err


def test_one_command_makes_a_file_conserve_and_another_sees_it(source, tmp_path):
    out, picture = tmp_path / "out.nc", tmp_path / "budget.png"
    asked = (*ASKED, "--std", "u_std", "--total", "initial")
    assert called("check", source, *asked).returncode == 1
    done = called("enforce", source, *asked, "-o", out, "--plot", picture)
    assert done.returncode == 0, done.stderr
    assert "before: does not close" in done.stdout
    assert "after:  closes" in done.stdout
    assert "cell areas from the centres of lat and lon" in done.stdout
    assert picture.stat().st_size > 10_000
    seen = called("check", out, *asked)
    assert seen.returncode == 0, seen.stderr
    assert "now: closes" in seen.stdout


@pytest.mark.parametrize("tolerance", ["nan", "-1"])
def test_a_tolerance_is_a_number_from_0_on(source, tolerance, capsys):
    said = refused(capsys, "check", str(source), *ASKED, "--tolerance", tolerance)
    assert "`--tolerance` must lie between 0 and inf" in said


def test_the_tolerance_decides_both_the_words_and_the_status(source, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["check", str(source), *ASKED, "--tolerance", "0.5"])
    assert "now: closes" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="1"):
        main(["check", str(source), *ASKED, "--tolerance", "1e-5"])
    assert "now: does not close" in capsys.readouterr().out


def test_a_dry_run_prints_both_budgets_and_writes_nothing(source, tmp_path):
    done = called("enforce", source, *ASKED, "--std", "0.3", "--dry-run", "--minimum", "2.5")
    assert done.returncode == 0, done.stderr
    assert "after:  closes" in done.stdout
    assert "values of u were below 2.5 and are not now" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["in.nc"]


def test_rates_regions_and_blocks_are_options(source, tmp_path):
    out = tmp_path / "out.zarr"
    how = ("--inflow", "rain", "--time", "time", "--chunks", "time=2", "--workers", "1")
    done = called("enforce", source, *ASKED, *how, "--std", "u_std", "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert called("check", out, *ASKED, "--inflow", "rain").returncode == 0
    assert called("check", out, *ASKED).returncode == 1
    basins = ("--regions", "basin", "--correlation", "0.5")
    done = called("enforce", source, *ASKED, *basins, "--std", "u_std", "--dry-run")
    assert "10 totals" in done.stdout, done.stderr


def test_a_file_of_laws_states_several_at_once(source, tmp_path):
    laws = tmp_path / "laws.toml"
    laws.write_text(
        '[[law]]\nname = "mass"\nvariables = "u"\nover = ["lat", "lon"]\n'
        '[[law]]\nname = "energy"\nvariables = {u = 2.0, v = 0.5}\nover = ["lat", "lon"]\n'
    )
    out = tmp_path / "out.nc"
    asked = ("--laws", str(laws), "--std", "u=u_std", "v=1.5")
    done = called("enforce", source, *asked, "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert "mass, summed over" in done.stdout
    assert "energy, summed over" in done.stdout
    assert called("check", out, *asked).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--mean", "u", "--std", "u_std"), "give `--mean` and `--over`"),
        ((*ASKED, "--std", "u_std"), "where to? Give `-o OUT.nc`"),
        ((*ASKED, "--std", "u_sdt", "--dry-run"), "Did you mean 'u_std'"),
        ((*ASKED, "--dry-run"), "how should `u` be moved? Give `--how`"),
        ((*ASKED, "--std", "u_std", "--chunks", "time", "--dry-run"), "takes NAME=VALUE pairs"),
        ((*ASKED, "--std", "1", "--chunks", "time=a", "--dry-run"), "needs whole numbers"),
        (
            ("--std", "1", "--laws", "in.toml", "--dry-run"),
            "in.toml cannot be read: No such",
        ),
        (
            (*ASKED, "--std", "1", "--laws", "in.toml", "--dry-run"),
            "`--laws` replaces `--mean`, `--over`: say that in in.toml",
        ),
        ((*ASKED, "--how", "uniform", "-o", "o.nc", "--plot", "p.nc"), "`--plot` p.nc must end in"),
        ((*ASKED, "--how", "uniform", "-o", "o.nc", "--plot", "plts/p.png"), "no folder plts"),
        ((*ASKED, "--total", "3", "--average", "3"), "`--average` and `--total` are two ways"),
        ((*ASKED, "--total", "initial", "--average", "3"), "`--average` and `--total` are two"),
        (("--law", "enrgy", "--dry-run"), "got 'enrgy'. Did you mean 'energy'?"),
        ((*ASKED, "--how", "uniform", "--jointly", "time", "--dry-run"), "`--jointly` is for an"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(source, arguments, message, capsys):
    said = refused(capsys, "enforce", str(source), *arguments)
    assert message in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize("option", [("--total", "initial"), ("--std", "u_std"), ("--member", "n")])
def test_options_without_a_law_are_not_dropped_by_check(source, option, capsys):
    assert "give `--mean` and `--over`" in refused(capsys, "check", str(source), *option)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[law]", "is no TOML file"),
        ("law = 3", "has no table [[law]]"),
        ("law = [3]", "has no table [[law]]"),
        ('[[law]]\nvariables = "u"', "has no 'over'"),
        ('[[law]]\nvariables = "u"\nover = "lat"\nname = 3', "`name` of a law must be text"),
        ('[[law]]\nvariables = "u"\nover = "lat"\nheld = 3', "`held` of a law must be text"),
        ('[[law]]\nvariables = "u"\nover = "lat"\nassume_units = {u = 3}', "must be one unit"),
        ('[[law]]\nmean = "u"', "a law has no 'mean', 'variables' here; it has variables"),
        ('[[law]]\nlaw = "energy"', "a law has no 'law', 'recipe' here; it has variables"),
        ('[[law]]\nvariable = "u"', "a law has no 'variable'; it has variables, over"),
    ],
)
def test_a_file_of_laws_that_is_none_is_refused(source, tmp_path, text, message, capsys):
    laws = tmp_path / "laws.toml"
    laws.write_text(text)
    assert message in refused(capsys, "check", str(source), "--laws", str(laws))


def test_a_run_that_is_stopped_says_that_nothing_was_written(source, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    asked = ["enforce", str(source), *ASKED, "--std", "u_std", "--dry-run"]
    monkeypatch.setattr("probconserv.files.enforce_file", stop)
    with pytest.raises(SystemExit, match="130"):
        main(asked)
    assert capsys.readouterr().err == "probconserv: stopped; nothing was written\n"


def test_what_nobody_foresaw_is_no_verdict(tmp_path, monkeypatch):
    from probconserv import files

    def broken(*_, **__):
        raise ValueError("a fault of ours")

    monkeypatch.setattr(files, "check_file", broken)
    done = called("check", tmp_path / "any.nc", *ASKED)
    assert done.returncode == 2
    assert "a fault of ours" in done.stderr
