"""`probconserv` and `python -m probconserv`."""

import sys


def main() -> None:
    try:
        from .cli import main as run
    except ModuleNotFoundError as error:
        from ._extras import missing

        sys.exit(f"probconserv: {missing(error.name, 'cli', 'plots')}")
    run()


if __name__ == "__main__":
    main()
