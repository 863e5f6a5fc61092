"""Running the command line in this process."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from pagetide.cli import main


@dataclass
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path
) -> Callable[..., Outcome]:
    """Return a function that runs a command in a fresh folder: ``cli("run", "bert-base", "--batch", "8")``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["pagetide", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run
