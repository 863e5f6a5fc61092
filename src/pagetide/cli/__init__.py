"""The command line: it parses, calls the library and prints."""

import sys

from pagetide.cli.app import app

__all__ = ["main"]


def main() -> None:
    """Run the command line; bad input ends with one line on standard error and exit code 2."""
    from pagetide.model.errors import InputError

    try:
        app()
    except InputError as error:
        print(f"pagetide: {error}", file=sys.stderr)
        sys.exit(2)
