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
        first: sentence on the first offending request; empty if there is none.
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
    bus_errors: bool = False,
) -> Verdict:
    """Compare the records of a run with the golden walk of each access.

    Args:
        records: `RECORD` [N], one for each request in trace order.
        va: uint64[N], byte addresses.
        access: uint8[N], access codes.
        image: the page table that the run used.
        bus_errors: whether the memory injected errors; then BUS_ERROR is right for any request.
    """
    golden = image.translate_many(va, access)
    status = records["status"]
    wrong = status != golden.status
    ok = golden.status == Status.OK
    wrong |= ok & ((records["pa"] != golden.pa) | (records["aperture"] != golden.aperture))
    located = np.isin(golden.status, _WITH_PAGE)
    wrong |= located & (records["flash_page"] != golden.flash_page)
    wrong |= (ok | located) & (records["page_size"] != golden.page_size)
    if bus_errors:
        wrong &= status != Status.BUS_ERROR
    lost = records["answers"] == 0
    wrong &= ~lost
    duplicates = int(np.maximum(records["answers"].astype(np.int64) - 1, 0).sum())
    bad = np.flatnonzero(wrong | lost | (records["answers"] > 1))
    first = ""
    if bad.size:
        n = int(bad[0])
        got = {
            name: int(records[name][n])
            for name in ("status", "pa", "aperture", "page_size", "flash_page", "hit")
        }
        expected = golden[n]
        first = (
            f"request {n}: va {int(va[n]):#x}, access {int(access[n])}: {int(records['answers'][n])} responses; "
            f"got status {_status(got['status'])}, pa {got['pa']:#x}, aperture {got['aperture']}, "
            f"page size {got['page_size']}, flash page {got['flash_page']:#x}, hit {got['hit']}; "
            f"expected status {expected.status.name}, pa {expected.pa:#x}, aperture {int(expected.aperture)}, "
            f"page size {int(expected.page_size)}, flash page {expected.flash_page:#x}"
        )
    return Verdict(int(wrong.sum()), int(lost.sum()), duplicates, first)


def _status(code: int) -> str:
    try:
        return str(Status(code).name)
    except ValueError:
        return f"{code:#x} (no such status)"
