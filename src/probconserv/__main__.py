"""`probconserv` and `python -m probconserv`."""

import gc
import os
import sys


def main() -> None:
    gc.set_threshold(100_000)  # imports make many objects and no garbage: a tenth of their time
    try:
        from .cli.main import main as run
    except ModuleNotFoundError as error:
        from .support.extras import missing

        sys.exit(f"probconserv: {missing(error.name, 'cli', 'plots')}")
    try:
        run()
    except SystemExit as end:
        if sys.argv[1:2] not in (["check"], ["enforce"], ["compare"]) or not isinstance(
            end.code, int | None
        ):
            raise
        _leave(end.code or 0)


def _leave(status: int) -> None:
    """Ends the process. All files are closed; to take down the libraries takes half a second."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:  # whoever reads has enough
        status = 141
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
