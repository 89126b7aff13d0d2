"""The header of a NetCDF 3 file against the file's size: its library reads a missing end as 0."""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

from .._errors import InputError

STREAMING = {4: 2**32 - 1, 8: 2**64 - 1}  # a record count that was never filled in
SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 4, 6: 8, 7: 1, 8: 2, 9: 4, 10: 8, 11: 8}  # bytes of a type
DIMENSION, VARIABLE, ATTRIBUTE = 10, 11, 12


@dataclass(frozen=True)
class _Variable:
    record: bool
    size: int  # bytes, of one record where it has records
    begin: int


def check_header(path: Path) -> None:
    """Refuses a file whose header is damaged, or promises more bytes than the file has."""
    size = path.stat().st_size
    with path.open("rb") as file:
        promised = _Header(file, path, size).promised()
    if promised > size:
        raise InputError(
            f"`path` {path} is cut off: its header promises {promised:,} bytes and the file has "
            f"{size:,}. Copy or download it again."
        )


class _Header:
    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self.file, self.path, self.size = file, path, size
        version = file.read(4)[3]
        self.width = 8 if version == 5 else 4  # bytes of a count
        self.offset = 4 if version == 1 else 8  # bytes of a position in the file

    def promised(self) -> int:
        """The last byte that some value of some variable takes."""
        records = self._number(self.width)
        lengths = [self._dimension() for _ in range(self._entries(DIMENSION))]
        self._attributes()
        variables = [self._variable(lengths) for _ in range(self._entries(VARIABLE))]
        if records == STREAMING[self.width]:
            records = 0
        stride = _stride([v.size for v in variables if v.record])
        ends = [
            v.begin + v.size + (stride * (records - 1) if v.record else 0)
            for v in variables
            if records or not v.record
        ]
        return max([self.file.tell(), *ends])

    def _dimension(self) -> int:
        self._name()
        return self._number(self.width)

    def _attributes(self) -> None:
        for _ in range(self._entries(ATTRIBUTE)):
            self._name()
            kind = self._kind()
            self._skip(_padded(self._number(self.width) * kind))

    def _variable(self, lengths: list[int]) -> _Variable:
        self._name()
        rank = self._number(self.width)
        if rank > self.size:
            raise self._damaged()
        dims = [self._number(self.width) for _ in range(rank)]
        if any(d >= len(lengths) for d in dims):
            raise self._damaged()
        self._attributes()
        kind = self._kind()
        self._number(self.width)  # the size it claims, which overflows in valid files
        begin = self._number(self.offset)
        record = bool(dims) and lengths[dims[0]] == 0
        return _Variable(record, kind * prod(lengths[d] for d in dims[record:]), begin)

    def _entries(self, tag: int) -> int:
        found, count = self._number(4), self._number(self.width)
        if (found, count) != (0, 0) and (found != tag or count > self.size):
            raise self._damaged()
        return count

    def _kind(self) -> int:
        kind = self._number(4)
        if kind not in SIZES:
            raise self._damaged()
        return SIZES[kind]

    def _name(self) -> None:
        self._skip(_padded(self._number(self.width)))

    def _number(self, width: int) -> int:
        read = self.file.read(width)
        if len(read) < width:
            raise self._damaged()
        return int.from_bytes(read, "big")

    def _skip(self, count: int) -> None:
        if self.file.tell() + count > self.size:
            raise self._damaged()
        self.file.seek(count, 1)

    def _damaged(self) -> InputError:
        return InputError(
            f"`path` {self.path} has a NetCDF 3 header that is cut off or damaged near byte "
            f"{self.file.tell():,}. Copy or download it again."
        )


def _padded(size: int) -> int:
    return -(-size // 4) * 4


def _stride(sizes: list[int]) -> int:
    """Bytes from one record to the next; a variable that is alone in them is not padded."""
    return sizes[0] if len(sizes) == 1 else sum(_padded(size) for size in sizes)
