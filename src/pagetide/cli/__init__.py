"""The command line: it parses, calls the library and prints."""

import sys

from pagetide.cli.app import app

__all__ = ["main"]


def main() -> None:
    """Run the command line.

    Bad input ends with one line on standard error and exit code 2, a tool that fails with its message and exit code 1.
    """
    from pagetide.model.errors import InputError, ToolError

    try:
        app()
    except InputError as error:
        print(f"pagetide: {error}", file=sys.stderr)
        sys.exit(2)
    except ToolError as error:
        print(f"pagetide: {error}", file=sys.stderr)
        sys.exit(1)
