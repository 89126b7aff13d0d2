"""Damaged input is said to be damaged input; no output is left, and the input is as it was."""

import hashlib
import re
import shutil

import numpy as np
import pytest
import xarray as xr
from commands import called
from stores import store

from probconserv.errors import InputError
from probconserv.files import FileLaw, check_file, enforce_file

pytestmark = [
    pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
]
LAW = FileLaw("u", ("y", "x"), measure=1.0)
FULL = "room on the disk"


def field():
    values = np.random.default_rng(5).normal(10.0, 1.0, (6, 5, 4))
    attrs = {f"note{i}": 20 * f"{i} " for i in range(9)}  # more than fit beside the definition
    fields = {name: (("t", "y", "x"), values.astype("f4"), attrs) for name in "uv"}
    times = {"t": ("t", np.arange(6.0), {"units": "days since 2000-01-01"})}
    return xr.Dataset(fields, times, attrs)


def consolidated(folder, version):
    field().to_zarr(folder / "in.zarr", zarr_format=version, consolidated=True)
    return folder / "in.zarr"


def digest(path):
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()


def refusal(path):
    """What `enforce` says of the file, which it leaves as it was, and nothing else."""
    before = digest(path)
    with pytest.raises(InputError) as refused:
        enforce_file(path, path.with_name(f"out{path.suffix}"), LAW, how="uniform")
    assert digest(path) == before
    assert list(path.parent.iterdir()) == [path]
    return str(refused.value)


DEFINITIONS = [(2, "v/.zarray"), (2, "v/.zattrs"), (3, "v/zarr.json"), (3, "t/zarr.json")]


@pytest.mark.parametrize(("version", "name"), DEFINITIONS)
@pytest.mark.parametrize("content", [b"", b'{"shape": [6', b"\xff\xfe"])
def test_a_damaged_definition_beside_a_sound_copy_of_it_is_damage(tmp_path, version, name, content):
    path = consolidated(tmp_path, version)
    (path / name).write_bytes(content)
    said = refusal(path)
    assert re.search(rf"in\.zarr cannot be read at {name[0]}.*damaged", said)
    assert FULL not in said


@pytest.mark.parametrize(("version", "name"), [(2, "v/.zarray"), (3, "t/zarr.json")])
def test_a_variable_whose_definition_is_missing_is_not_lost_in_silence(tmp_path, version, name):
    path = consolidated(tmp_path, version)
    (path / name).unlink()
    assert re.search(rf"in\.zarr cannot be read at {name[0]}: .*damaged", refusal(path))


@pytest.mark.parametrize("content", [b"", b'{"meta', b"\xff\xfe"])
@pytest.mark.parametrize(("version", "name"), [(2, ".zmetadata"), (3, "zarr.json")])
def test_a_damaged_root_is_damage_for_both(tmp_path, version, name, content):
    path = consolidated(tmp_path, version)
    (path / name).write_bytes(content)
    assert "damaged" in refusal(path)
    with pytest.raises(InputError, match=r"in\.zarr cannot be read.*damaged"):
        check_file(path, LAW)


@pytest.mark.parametrize("format", ["netcdf3", "netcdf4"])
def test_a_file_that_is_cut_off_anywhere_is_damage(tmp_path, format):
    path = store(tmp_path, format, field().isel(y=[0, 1] * 50, x=[0, 1] * 40))
    whole = path.read_bytes()
    for part in (0.02, 0.3, 0.6, 0.97):
        path.write_bytes(whole[: int(part * len(whole))])
        assert re.search(r"cut off|damaged", said := refusal(path))
        assert FULL not in said


@pytest.mark.parametrize(("version", "chunk"), [(2, "u/0.0.0"), (3, "u/c/0/0/0")])
def test_a_chunk_that_is_cut_off_is_damage_with_its_place(tmp_path, version, chunk):
    path = consolidated(tmp_path, version)
    whole = (path / chunk).read_bytes()
    (path / chunk).write_bytes(whole[: len(whole) // 2])
    assert re.search(r"in\.zarr cannot be read at u\[0.*, 0:5, 0:4\].*damaged", refusal(path))


def test_damage_that_only_writing_meets_is_said_to_be_possible(tmp_path):
    path = store(tmp_path, "netcdf4", field())
    whole = bytearray(path.read_bytes())
    for found in re.finditer(b"FSSE", whole):  # lists of what is free between attributes
        whole[found.start() + 6] ^= 0x10
    path.write_bytes(whole)
    assert not check_file(path, LAW).closes()
    assert f"Else {path}, of which it is a copy, is damaged" in refusal(path)


def test_the_command_says_so_too(tmp_path):
    path = consolidated(tmp_path, 3)
    (path / "v/zarr.json").write_bytes(b"")
    asked = ("--mean", "u", "--over", "y", "x", "--measure", "1", "--how", "uniform")
    done = called("enforce", path, *asked, "-o", tmp_path / "out.zarr")
    assert done.returncode == 2
    assert "cannot be read at v" in done.stderr
    assert FULL not in done.stderr
    shutil.rmtree(path)
    assert list(tmp_path.iterdir()) == []
