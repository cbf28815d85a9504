"""`python -m antiphon`, and the `antiphon` command: the command line if its extra is installed, else what to install."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    try:
        try:
            from antiphon.cli import app  # noqa: PLC0415 (so that what is missing can be said without a traceback)
        except ModuleNotFoundError as exc:
            sys.exit(f"antiphon: {exc}")
        app(prog_name="antiphon")
    except KeyboardInterrupt:
        sys.exit(130)  # while modules are imported or commands are made: nothing has begun that would have to be told


if __name__ == "__main__":
    main()
