"""The sweep of lambda, the penalty of SoftC-ANP: results of networks that are not shipped."""

import json
from pathlib import Path

from ._cell import Record

PATH = Path(__file__).with_name("sweep.json")


def sweep() -> list[Record]:
    """Records with the `penalty` that SoftC-ANP was trained with; 0 is the ANP.

    `python weights/sweep.py RUN ...` makes them.

    Returns
    -------
    list of dict
        A record for each penalty, parameter and protocol.
    """
    return json.loads(PATH.read_text())["records"]
