"""What kernels waited for, as the log of transfers tells it: stall time by cause, the tensor to blame, compute that overlaps transfers.

At each moment of a stall the first of these that holds is its cause:

1. ``demand fetch``: a channel into GPU memory carries what a page fault asked for;
2. ``late prefetch``: a channel into GPU memory carries what was asked for ahead, but not early enough;
3. ``eviction``: only channels out of GPU memory carry something: room is being made;
4. ``fault handling``: no channel carries anything: the driver works on a batch of faults, or a device's latency passes.

So the parts of a stall add up to it, to the picosecond. They tell what the channels did while the kernel waited, not what would have
had to be faster. What the log had no room for (`Transfers.lost`) counts as no transfer.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pagetide.model.workload.workload import Csr

if TYPE_CHECKING:
    from pagetide.model.result import Result, Transfers

__all__ = ["STALL_CAUSES", "blame_tensor", "overlap_ps", "stall_parts_ps"]

STALL_CAUSES = ("demand fetch", "late prefetch", "eviction", "fault handling")


class _Cover:
    """The time that spans cover, as a function: how much of it lies before a moment. All in whole picoseconds."""

    def __init__(self, start: NDArray[np.int64], end: NDArray[np.int64]) -> None:
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        latest = np.maximum.accumulate(end) if len(end) else end
        # A span opens a new piece where it begins after all before it have ended.
        opens = np.ones(len(start), dtype=bool)
        opens[1:] = start[1:] > latest[:-1]
        first = np.flatnonzero(opens)
        self._start = start[first]
        self._end = latest[np.append(first[1:], len(start)) - 1] if len(first) else end
        self._before = np.concatenate([[0], np.cumsum(self._end - self._start)])

    def until(self, moment: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how much is covered before each moment: int64, as `moment`."""
        if not len(self._start):
            return np.zeros_like(moment)
        place = np.searchsorted(self._start, moment, side="right") - 1
        inside = np.minimum(moment, self._end[place]) - self._start[place]
        return np.where(place < 0, 0, self._before[place] + inside)

    def between(self, low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how much is covered from `low` to `high`, by pair."""
        return self.until(high) - self.until(low)


def _into_gpu(channels: Sequence[str]) -> NDArray[np.bool_]:
    return np.array([name.endswith("->gpu") for name in channels], dtype=bool)


def stall_parts_ps(result: "Result") -> NDArray[np.int64]:
    """Return the time each kernel waited by cause (columns as `STALL_CAUSES`): int64[K, 4]; rows add up to the kernel's stall."""
    moved = result.transfers
    incoming = _into_gpu(result.channels)[moved.channel]
    demand = np.array([name == "demand" for name in result.causes], dtype=bool)[moved.cause]
    parts = np.zeros((len(result.ready_ps), len(STALL_CAUSES)), dtype=np.int64)
    explained = np.zeros(len(result.ready_ps), dtype=np.int64)
    for place, rows in enumerate((incoming & demand, incoming, np.ones_like(incoming))):
        cover = _Cover(moved.start_ps[rows], moved.end_ps[rows])
        covered = cover.between(result.ready_ps, result.start_ps)
        parts[:, place] = covered - explained
        explained = covered
    parts[:, -1] = result.start_ps - result.ready_ps - explained
    return parts


def overlap_ps(result: "Result") -> int:
    """Return for how long kernels ran while any channel carried something."""
    cover = _Cover(result.transfers.start_ps, result.transfers.end_ps)
    return int(cover.between(result.start_ps, result.end_ps).sum())


def blame_tensor(
    operands: Csr,
    ready_ps: NDArray[np.int64],
    start_ps: NDArray[np.int64],
    transfers: "Transfers",
    channels: Sequence[str],
) -> NDArray[np.int32]:
    """Return for each kernel the operand that came into GPU memory last while the kernel waited: int32[K], -1 for none.

    None if the kernel did not wait, or if no operand came in meanwhile: then room was being made for tensors that it writes first.

    Args:
        operands: of each kernel.
        ready_ps, start_ps: int64[K], as in `Result`.
        transfers: the log.
        channels: names of the channels of the log.
    """
    blamed = np.full(len(ready_ps), -1, dtype=np.int32)
    rows = np.flatnonzero(_into_gpu(channels)[transfers.channel])
    if not len(rows) or not len(operands.ids):
        return blamed
    # The last arrival of each operand up to the kernel's start, by one search in arrivals sorted by tensor and time.
    times, rank = np.unique(transfers.end_ps[rows], return_inverse=True)
    step = len(times) + 1
    arrivals = np.sort(transfers.tensor[rows] * step + rank)
    kernel, tensor = operands.rows, operands.ids.astype(np.int64)
    by_start = np.searchsorted(times, start_ps, side="right")[kernel]
    found = arrivals[np.searchsorted(arrivals, tensor * step + by_start, side="left") - 1]
    came = (found // step == tensor) & (found % step < by_start)
    end = np.where(came, times[np.minimum(found % step, len(times) - 1)], 0)
    came &= end > ready_ps[kernel]
    kernel, tensor, end = kernel[came], tensor[came], end[came]
    order = np.lexsort((-tensor, end, kernel))
    last = np.append(kernel[order][1:] != kernel[order][:-1], True)[: len(order)]
    blamed[kernel[order][last]] = tensor[order][last]
    return blamed
