"""`probconserv` and `python -m probconserv`."""

import sys


def main() -> None:
    try:
        from .cli import main as run
    except ModuleNotFoundError as error:
        sys.exit(f"probconserv: no {error.name} here; pip install 'probconserv[cli,plots]'")
    run()


if __name__ == "__main__":
    main()
