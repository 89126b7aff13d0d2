"""The words for a package that is not installed."""

import shlex
from importlib.metadata import PackageNotFoundError, requires


def missing(name: str | None, *extras: str) -> str:
    """What is not here, and the command that installs it with all else that the extras bring.

    The command names the packages themselves: this library is not on PyPI, and they are the same
    for a wheel, a checkout and an editable install.
    """
    try:
        lines = requires("probconserv") or []
    except PackageNotFoundError:  # a checkout that is on the path and not installed
        lines = []
    markers = tuple(f'extra == "{extra}"' for extra in extras)
    packages = [line.split(";")[0].strip() for line in lines if line.endswith(markers)]
    command = f"pip install '.[{','.join(extras)}]' in a checkout of probconserv"
    if packages:
        command = shlex.join(["pip", "install", *packages])
    return f"no {name} here; {command}"
