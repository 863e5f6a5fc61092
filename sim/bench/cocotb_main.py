"""The cocotb test of the fast bench: it waits, reports progress, and ends when the bench says so."""

import os
from pathlib import Path
from typing import Any

import cocotb
from cocotb.triggers import Timer

CYCLES_A_WAKE = 50_000
CLOCK_NS = 2
"""Period of the bench's own clock."""


@cocotb.test()
async def run(dut: Any) -> None:
    """Wait for the end of the run; write the number of answered requests to the file that PAGETIDE_PROGRESS names."""
    report = os.environ.get("PAGETIDE_PROGRESS")
    finished, answered = dut.finished, dut.answered
    wake = Timer(CYCLES_A_WAKE * CLOCK_NS, "ns")
    while not int(finished.value):
        await wake
        if report:
            fresh = Path(report + ".new")
            fresh.write_text(str(int(answered.value)))
            fresh.replace(report)  # a reader never sees half a number
