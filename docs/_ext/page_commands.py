"""Runs the commands of a page: blocks marked ``console``, lines that begin with ``$ pagetide``.

Commands of a block that follows the words "exit code 2" must end with that code, all others with 0.
"""

import os
import re
import shlex
import tempfile
from pathlib import Path

from typer.testing import CliRunner

PAGES = Path(__file__).parent.parent


def run(page: str) -> str:
    """Run them in an empty folder and return (and thereby show) how they ended; raises `AssertionError` at the first that differs."""
    from pagetide.cli.app import app
    from pagetide.model.errors import InputError

    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    ended = {0: 0, 2: 0}
    runner = CliRunner()
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for block in re.finditer(r"```console\n(.*?)```", text, re.DOTALL):
                lead = text[: block.start()].rstrip().rsplit("\n", 1)[-1]
                expected = 2 if "exit code 2" in lead else 0
                for line in block[1].splitlines():
                    words = shlex.split(line.removeprefix("$ "))
                    if words[:1] != ["pagetide"]:
                        continue
                    result = runner.invoke(app, words[1:])
                    code = 2 if isinstance(result.exception, InputError) else result.exit_code
                    if code != expected:
                        raise AssertionError(
                            f"{line} ended with {code}: {result.output}"
                        ) from result.exception
                    ended[code] += 1
        finally:
            os.chdir(before)
    return _Plain(f"{ended[0]} commands ended with 0, {ended[2]} with 2")


class _Plain(str):
    """A text that an example shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
