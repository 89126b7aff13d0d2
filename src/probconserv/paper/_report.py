from typing import NamedTuple


class Picture(NamedTuple):
    problem: str
    parameter: float
    kind: str
    caption: str
    svg: str


def report(records, sweep, remarks, pictures):
    return "x"
