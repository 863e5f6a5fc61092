"""``pagetide report``."""

from pathlib import Path
from typing import Annotated

import typer

from pagetide.cli.common import console

__all__ = ["report"]


def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULT...",
            help="Results of pagetide run: JSON files, or folders with results in them.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write (.html).")],
    title: Annotated[
        str | None, typer.Option("--title", help="Heading; the workload's name if not given.")
    ] = None,
) -> None:
    """Write one self-contained HTML page about results: figures to hover and zoom, tables, configuration.

    \b
    pagetide run bert-base --batch 384 -o results/bert
    pagetide report results/bert -o report.html
    """
    from pagetide.model.report import save_report
    from pagetide.model.result import Result
    from pagetide.model.result_files import find_results

    found = [Result.load(path) for path in find_results(results)]
    save_report(output, found, title=title)
    console.print(
        f"report: {output} ({len(found)} result{'s' if len(found) != 1 else ''}, "
        f"{output.stat().st_size / 1e6:.1f} MB)"
    )
