import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from stores import small, store

from probconserv.errors import InputError
from probconserv.files import _write
from probconserv.files._attributes import decoded
from probconserv.files._read import read
from probconserv.files._write import check_output, staged, write
from probconserv.support.complete_files import sole_writer

SUFFIXES = pytest.mark.parametrize("suffix", [".nc", ".zarr"])


def failing(error: BaseException) -> xr.Dataset:
    """Twenty blocks, of which the twelfth fails."""

    def fail(block: Any) -> Any:
        if block[0] == 11:
            raise error
        return block

    blocks = da.arange(20.0, chunks=1).map_blocks(fail, meta=np.empty(0))
    return xr.Dataset({"u": ("x", blocks)})


def fields() -> xr.Dataset:
    return small().drop_vars("station")


@SUFFIXES
@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
def test_nothing_is_left_of_a_run_that_failed(
    tmp_path: Path, suffix: str, error: BaseException
) -> None:
    kind = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else InputError
    with pytest.raises(kind):
        write(failing(error), tmp_path / f"a{suffix}")
    assert list(tmp_path.iterdir()) == []


@SUFFIXES
def test_an_existing_output_is_refused_before_any_work(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    write(fields(), path)
    with pytest.raises(InputError, match=r"exists\. Use `overwrite=True` to replace it"):
        write(failing(AssertionError("it was computed")), path)


@SUFFIXES
def test_an_input_that_may_not_be_written_gives_an_output_that_may(
    tmp_path: Path, suffix: str
) -> None:
    source, out = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    write(fields(), source)
    for each in [source, *source.rglob("*")]:
        each.chmod(0o555 if each.is_dir() else 0o444)
    with read(source) as dataset:
        write(dataset, out, like=source)
    assert all(each.stat().st_mode & stat.S_IWUSR for each in [out, *out.rglob("*")])


@SUFFIXES
def test_an_output_is_replaced_only_by_a_complete_one(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    write(fields(), path)
    with pytest.raises(InputError, match="cannot be written: boom"):
        write(failing(RuntimeError("boom")), path, overwrite=True)
    with pytest.raises(ZeroDivisionError):
        write(fields(), path, overwrite=True, finish=lambda _: {"ratio": 1 // 0})
    with read(path) as old:
        xr.testing.assert_identical(decoded(old).load(), fields())
    write(fields() + 1, path, overwrite=True)
    with read(path) as new:
        xr.testing.assert_equal(decoded(new).load(), fields() + 1)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("format", ["netcdf4", "zarr3"])
def test_the_input_is_never_the_output(tmp_path: Path, format: str) -> None:
    path = store(tmp_path, format)
    link = tmp_path / f"link{path.suffix}"
    link.symlink_to(path)
    with read(path) as dataset:
        for same in (path, link):
            with pytest.raises(InputError, match=r"is the input .*, which is never changed"):
                write(dataset, same, overwrite=True)
        write(dataset, tmp_path / f"out{path.suffix}")
    with read(path) as dataset:
        assert dataset["u"].shape == (6, 5, 4)


def test_input_and_output_do_not_lie_inside_each_other(tmp_path: Path) -> None:
    path = store(tmp_path, "zarr3")
    with read(path) as dataset, pytest.raises(InputError, match=r"lie one inside the other"):
        write(dataset, path / "out.zarr")
    with pytest.raises(InputError, match=r"lie one inside the other"):
        check_output(tmp_path / "a.zarr", True, [str(tmp_path / "a.zarr" / "in.nc")])


def test_only_a_store_is_replaced_by_a_store_and_a_file_by_a_file(tmp_path: Path) -> None:
    for name in ("a.zarr", "a.nc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious").write_text("kept")
        with pytest.raises(InputError, match=r"is not replaced even with `overwrite=True`"):
            write(fields(), tmp_path / name, overwrite=True)
        assert (tmp_path / name / "precious").read_text() == "kept"


def test_the_name_must_say_the_format(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"`path` 'a.grib' must end in .nc, .nc4, .cdf \(NetCDF\)"):
        write(fields(), tmp_path / "a.grib")


def test_a_folder_that_cannot_be_written_to_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"`path` lies in .*file, which is no folder"):
        write(fields(), tmp_path / "file" / "a.nc")
    monkeypatch.setattr(_write.os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(InputError, match=r"`path` lies in .*, which is not writable"):
        write(failing(AssertionError("it was computed")), tmp_path / "a.nc")


@contextmanager
def little_room(size: int) -> Iterator[None]:
    """No file can grow beyond the size, which libraries meet as they meet a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@SUFFIXES
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, suffix: str) -> None:
    rng = da.random.default_rng(0)
    large = xr.Dataset({"u": (("t", "x"), rng.normal(size=(40, 25_000), chunks=(4, 25_000)))})
    with little_room(300_000), pytest.raises(InputError, match=r"cannot be written: .*room on"):
        write(large, tmp_path / f"a{suffix}")
    assert list(tmp_path.iterdir()) == []


@SUFFIXES
def test_a_damaged_input_is_named_and_leaves_no_output(tmp_path: Path, suffix: str) -> None:
    path = store(tmp_path, "zarr3")
    (path / "u" / "c/1/0/0").write_bytes(b"\x00" * 10)
    with read(path) as dataset, pytest.raises(InputError, match=r"zarr3\.zarr cannot be read at u"):
        write(dataset, tmp_path / f"out{suffix}")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@SUFFIXES
def test_what_a_killed_run_left_is_cleared_and_what_it_moved_comes_back(
    tmp_path: Path, suffix: str
) -> None:
    path, stage = tmp_path / f"a{suffix}", tmp_path / f".a{suffix}.part"
    stage.mkdir()
    (stage / "junk").write_text("")
    write(fields(), stage / f"old{suffix}")
    (stage / f"old{suffix}").rename(stage / "old")
    with pytest.raises(InputError, match="boom"):
        write(failing(RuntimeError("boom")), path)
    with read(path) as old:
        xr.testing.assert_identical(decoded(old).load(), fields())
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_the_old_store_comes_back_if_the_new_one_cannot_take_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    write(fields(), path)
    with pytest.raises(FileNotFoundError), staged(path):
        pass  # nothing was written
    with read(path) as old:
        xr.testing.assert_identical(decoded(old).load(), fields())


def test_two_runs_do_not_write_the_same_output(tmp_path: Path) -> None:
    with (
        sole_writer(tmp_path / ".a.nc.part"),
        pytest.raises(InputError, match="another process is writing into"),
    ):
        write(fields(), tmp_path / "a.nc")


def test_an_output_has_the_permissions_that_the_user_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(fields(), tmp_path / "a.nc")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.nc").stat().st_mode) == 0o640


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, suffix: str) -> None:
    def series(times: int) -> xr.Dataset:
        return xr.Dataset({"u": (("time", "x"), np.ones((times, 3)))}, {"time": np.arange(times)})

    def put(data: xr.Dataset, name: str) -> Path:
        path = tmp_path / f"{name}{suffix}"
        if suffix == ".nc":
            data.to_netcdf(path, unlimited_dims="time")
        else:
            data.to_zarr(path, zarr_format=2)
        return path

    path, newer = put(series(4), "in"), put(series(5), "newer")
    with read(path) as dataset:
        path.rename(tmp_path / "old")
        newer.rename(path)
        with pytest.raises(InputError, match=r"`source` .* was changed while it was read"):
            write(dataset.assign(u=2 * dataset["u"]), tmp_path / f"out{suffix}", like=path)
    assert sorted(each.name for each in tmp_path.iterdir()) == [f"in{suffix}", "old"]
