"""Data that is no file or folder of this machine: what is said, and that it works."""

import json
import os
import re

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr
from commands import called

import probconserv.files
from probconserv.errors import InputError
from probconserv.files import FileLaw, check_file, enforce_file
from probconserv.files._read import line

pytestmark = pytest.mark.filterwarnings("ignore")  # of Zarr about archives and metadata
LAW = FileLaw("u", ("lat", "lon"))
ASKED = ("--mean", "u", "--over", "lat", "lon")


def field():
    values = np.random.default_rng(3).normal(10, 1, (3, 4, 5))
    grid = {"time": np.arange(3.0), "lat": [-60.0, -20.0, 20.0, 60.0], "lon": np.arange(5) * 72.0}
    return xr.Dataset({"u": (("time", "lat", "lon"), values)}, grid)


def fixed_by(message, folder):
    """What the line of Python in a message leads to."""
    known = {"xr": xr, "zarr": zarr, "fsspec": fsspec, "files": probconserv.files}
    dataset = eval(re.search(r"`dataset = (.+?)`", message)[1], known)
    fixed = dataset.probconserv.enforce(LAW, how="uniform")
    assert fixed["u"].chunks  # read block by block
    fixed.drop_encoding().to_zarr(folder / "fixed.zarr")
    return check_file(folder / "fixed.zarr", LAW).closes()


@pytest.mark.parametrize("name", ["run.zarr", "run.nc"])
def test_a_url_is_refused_with_the_line_that_opens_it(tmp_path, name):
    if name.endswith("nc"):
        field().to_netcdf(tmp_path / name)
        fsspec.filesystem("memory").pipe(f"/{name}", (tmp_path / name).read_bytes())
    else:
        field().to_zarr(f"memory://{name}", mode="w", consolidated=False)
    with pytest.raises(InputError, match=f"`source` memory://{name} is a URL") as refused:
        check_file(f"memory://{name}", LAW)
    assert fixed_by(str(refused.value), tmp_path)


def test_the_command_line_keeps_a_url_as_it_is_written(tmp_path):
    for words in (("check",), ("enforce", "--how", "uniform", "-o", tmp_path / "out.nc")):
        done = called(words[0], "s3://bucket/run.zarr", *ASKED, *words[1:])
        assert done.returncode == 2
        assert "s3://bucket/run.zarr is a URL" in done.stderr
        assert "xr.open_zarr('s3://bucket/run.zarr')" in done.stderr


def test_a_file_url_is_the_file(tmp_path):
    path = tmp_path / "a run.nc"
    field().to_netcdf(path)
    url = path.as_uri()
    assert "%20" in url
    report = enforce_file(url, tmp_path / "out.nc", LAW, how="uniform")
    assert report.closes(after=True)
    assert called("check", url, *ASKED).returncode == 1


def test_a_url_is_refused_as_an_output_and_as_a_file_of_areas(tmp_path):
    field().to_netcdf(tmp_path / "in.nc")
    with pytest.raises(InputError, match=r"`target` s3://b/out\.zarr is a URL.*\.to_zarr\('s3:"):
        enforce_file(tmp_path / "in.nc", "s3://b/out.zarr", LAW, how="uniform")
    with pytest.raises(InputError, match=r"`measure` https://b/areas\.nc is a URL"):
        check_file(
            tmp_path / "in.nc", FileLaw("u", ("lat", "lon"), measure="https://b/areas.nc:area")
        )


def zipped(folder):
    store = zarr.storage.ZipStore(folder / "run.zip", mode="w")
    field().to_zarr(store, consolidated=False)
    store.close()
    return folder / "run.zip"


def references(folder):
    field().to_zarr(folder / "run.zarr", zarr_format=2)
    refs = {}
    for path in (p for p in (folder / "run.zarr").rglob("*") if p.is_file()):
        plain = path.name.startswith(".z")
        key = str(path.relative_to(folder / "run.zarr"))
        refs[key] = path.read_text() if plain else [str(path), 0, path.stat().st_size]
    (folder / "run.json").write_text(json.dumps({"version": 1, "refs": refs}))
    return folder / "run.json"


@pytest.mark.parametrize(("made", "what"), [(zipped, "a zip archive"), (references, "references")])
def test_what_xarray_opens_in_its_own_way_is_refused_with_that_line(tmp_path, made, what):
    path = made(tmp_path)
    with pytest.raises(InputError, match=what) as refused:
        check_file(path, LAW)
    assert fixed_by(str(refused.value), tmp_path)


def test_references_in_parquet_are_not_taken_for_a_store_without_values(tmp_path):
    folder = tmp_path / "run.parquet"
    folder.mkdir()
    (folder / ".zmetadata").write_text(json.dumps({"metadata": {".zgroup": {}}, "record_size": 9}))
    with pytest.raises(InputError, match=r"references.*'reference://', .*run\.parquet"):
        check_file(folder, LAW)


def test_an_icechunk_store_is_known_by_its_folders(tmp_path):
    for name in ("refs", "snapshots", "manifests"):
        (tmp_path / "run" / name).mkdir(parents=True)
    with pytest.raises(InputError, match=r"an icechunk store.*icechunk\.Repository\.open"):
        check_file(tmp_path / "run", LAW)


def test_a_local_name_with_colons_is_a_file(tmp_path):
    path = tmp_path / "a::b.nc"
    field().to_netcdf(path)
    assert not check_file(path, LAW).closes()
    assert line("C:/data/run.nc") == ""
    assert os.sep in str(path)
