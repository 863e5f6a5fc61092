"""The scoreboard: every response of the RTL against the golden walk of the page table."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagetide.hw.pagetable.nvidia_v2 import Status
from pagetide.hw.pagetable.table import TableImage

__all__ = ["RECORD", "Verdict", "judge"]

RECORD = np.dtype(
    [
        ("pa", np.uint64),
        ("flash_page", np.uint64),
        ("request_cycle", np.uint64),
        ("response_cycle", np.uint64),
        ("status", np.uint8),
        ("page_size", np.uint8),
        ("aperture", np.uint8),
        ("hit", np.uint8),
        ("answers", np.uint32),
    ]
)
"""What the bench notes of each request (``struct Record`` in ``bench.cpp``)."""

_WITH_PAGE = (Status.FLASH, Status.HOST_KEPT, Status.MIGRATING)


@dataclass(frozen=True)
class Verdict:
    """Outcome of a comparison.

    Attributes:
        mismatches: responses that differ from the golden walk.
        lost: requests without a response.
        duplicates: responses beyond the first of a request.
        first: sentence on the first offending request (the one taken earliest); empty if there is none.
    """

    mismatches: int
    lost: int
    duplicates: int
    first: str

    @property
    def clean(self) -> bool:
        """True if every request had exactly one response and every response was right."""
        return not (self.mismatches or self.lost or self.duplicates)


def judge(
    records: NDArray[Any],
    va: NDArray[np.uint64],
    access: NDArray[np.uint8],
    image: TableImage,
    *,
    port: NDArray[np.uint16] | None = None,
    kernel: NDArray[np.int32] | None = None,
    bus_errors: bool = False,
) -> Verdict:
    """Compare the records of a run with the golden walk of each access.

    Args:
        records: `RECORD` [N], one for each request in trace order.
        va: uint64[N], byte addresses.
        access: uint8[N], access codes.
        image: the page table that the run used.
        port, kernel: uint16[N] and int32[N], of each request, for the report.
        bus_errors: whether the memory injected errors; then BUS_ERROR is right for any request.
    """
    golden = image.translate_many(va, access)
    status = records["status"]
    wrong = status != golden.status
    ok = golden.status == Status.OK
    located = np.isin(golden.status, _WITH_PAGE)
    # Outside an answer with an address both fields, which share their bits, are 0.
    wrong |= ~located & (records["pa"] != np.where(ok, golden.pa, 0))
    wrong |= located & (records["flash_page"] != golden.flash_page)
    wrong |= records["aperture"] != np.where(ok, golden.aperture, 0)
    wrong |= records["page_size"] != golden.page_size
    if bus_errors:
        wrong &= status != Status.BUS_ERROR
    lost = records["answers"] == 0
    wrong &= ~lost
    duplicates = int(np.maximum(records["answers"].astype(np.int64) - 1, 0).sum())
    bad = np.flatnonzero(wrong | lost | (records["answers"] > 1))
    first = ""
    if bad.size:
        # The earliest in time: what went wrong later may follow from it. Requests that were never taken come last.
        asked = records["request_cycle"][bad].astype(np.int64)
        n = int(bad[np.argmin(np.where(asked == 0, np.iinfo(np.int64).max, asked))])
        first = _describe(
            records[n],
            n,
            f"va {int(va[n]):#x}, access {int(access[n])}"
            + (f", port {int(port[n])}" if port is not None else "")
            + (f", kernel {int(kernel[n])}" if kernel is not None else ""),
            golden[n],
        )
    return Verdict(int(wrong.sum()), int(lost.sum()), duplicates, first)


def _describe(record: Any, n: int, request: str, expected: Any) -> str:
    """One sentence with all that is known of a request, its answer and the right answer."""
    want = (
        f"expected status {expected.status.name}, pa {expected.pa:#x}, aperture {int(expected.aperture)}, "
        f"page size {int(expected.page_size)}, flash page {expected.flash_page:#x}"
    )
    asked, answers = int(record["request_cycle"]), int(record["answers"])
    if not answers:
        when = f"taken in cycle {asked}, no response" if asked else "never taken, no response"
        return f"request {n} ({request}): {when}; {want}"
    return (
        f"request {n} ({request}): taken in cycle {asked}, "
        f"{answers} response{'s' if answers > 1 else ''}, the last in cycle {int(record['response_cycle'])}; "
        f"got status {_status(int(record['status']))}, pa {int(record['pa']):#x}, aperture {int(record['aperture'])}, "
        f"page size {int(record['page_size'])}, flash page {int(record['flash_page']):#x}, hit {int(record['hit'])}; {want}"
    )


def _status(code: int) -> str:
    try:
        return str(Status(code).name)
    except ValueError:
        return f"{code:#x} (no such status)"
