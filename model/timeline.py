"""Timelines in the Chrome trace format, for ui.perfetto.dev.

Tracks: kernels, stalls, the channels of both link directions (host and SSD each), and counters of the bytes in GPU, host and
SSD. The viewer drops slices that overlap on a track, so transfers of a channel that overlap in time are spread over as many
tracks as it needs, the further ones named ``host->gpu (2)`` and so on.
"""

import heapq
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pagetide.model.columnar import atomic_write_bytes
from pagetide.model.result import Result

__all__ = ["lanes", "save_timeline", "timeline_events"]

_PROCESS = 1
_KERNELS, _STALLS, _FIRST_CHANNEL = 1, 2, 10
_PLACES = ("GPU", "host", "SSD")


def lanes(spans: Iterable[tuple[int, int]]) -> list[int]:
    """Return a lane for each span (start, end), so that spans of a lane do not overlap and as few lanes as possible are used.

    Spans may come in any order; one that begins where another ends does not overlap it.

    >>> lanes([(0, 4), (1, 3), (3, 5), (4, 6)])
    [0, 1, 1, 0]
    """
    ordered = sorted((start, end, place) for place, (start, end) in enumerate(spans))
    result = [0] * len(ordered)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for start, end, place in ordered:
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        result[place] = lane
        heapq.heappush(busy, (end, lane))
    return result


def _ns(time_ps: int) -> int:
    return round(time_ps / 1000)


def _slice(
    track: int, name: str, category: str, start_ns: int, end_ns: int, **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": _PROCESS,
        "tid": track,
        "name": name,
        "cat": category,
        # Microseconds, to the nanosecond, as the format wants them.
        "ts": start_ns / 1000,
        "dur": (end_ns - start_ns) / 1000,
        "args": args,
    }


def _label(what: str, track: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": _PROCESS, "tid": track, "name": what, "args": args}


def _track(track: int, name: str) -> Iterator[dict[str, Any]]:
    yield _label("thread_name", track, name=name)
    yield _label("thread_sort_index", track, sort_index=track)


def timeline_events(result: Result) -> Iterator[dict[str, Any]]:
    """Yield the trace events of one measured iteration; times in microseconds since its start."""
    yield _label("process_name", 0, name=f"{result.workload} {result.policy} ({result.profile})")
    yield from _kernel_events(result)
    yield from _transfer_events(result)


def _kernel_events(result: Result) -> Iterator[dict[str, Any]]:
    yield from _track(_KERNELS, "kernels")
    yield from _track(_STALLS, "stalls")
    for k, name in enumerate(result.kernels.names):
        ready, start, end = (
            _ns(int(times[k])) for times in (result.ready_ps, result.start_ps, result.end_ps)
        )
        if start > ready:
            blamed = int(result.blame_tensor[k])
            yield _slice(
                _STALLS,
                name,
                "stall",
                ready,
                start,
                kernel=k,
                fault_blocks=int(result.fault_blocks[k]),
                waited_for=result.tensors.names[blamed] if blamed >= 0 else "",
                **{
                    f"{cause} us": _ns(part) / 1000
                    for cause, part in zip(
                        result.stall_causes, result.stall_parts_ps[k].tolist(), strict=True
                    )
                    if part
                },
            )
        yield _slice(_KERNELS, name, "kernel", start, end, kernel=k)
        for place, used in zip(_PLACES, result.occupancy_bytes[k].tolist(), strict=True):
            yield {
                "ph": "C",
                "pid": _PROCESS,
                "name": f"{place} bytes",
                "ts": start / 1000,
                "args": {"bytes": used},
            }


def _transfer_events(result: Result) -> Iterator[dict[str, Any]]:
    moved = result.transfers
    track = _FIRST_CHANNEL
    for channel, name in enumerate(result.channels):
        rows = np.flatnonzero(moved.channel == channel)
        rows = rows[np.argsort(moved.start_ps[rows], kind="stable")]
        spans = [
            (_ns(start), _ns(end))
            for start, end in zip(
                moved.start_ps[rows].tolist(), moved.end_ps[rows].tolist(), strict=True
            )
        ]
        lane = lanes(spans)
        for number in range(max(lane, default=0) + 1):
            yield from _track(track + number, f"{name} ({number + 1})" if number else name)
        for row, (start, end), number in zip(rows.tolist(), spans, lane, strict=True):
            tensor = int(moved.tensor[row])
            yield _slice(
                track + number,
                result.tensors.names[tensor],
                "gpu_memcpy",
                start,
                end,
                tensor=tensor,
                cause=result.causes[int(moved.cause[row])],
                bytes=int(moved.size_bytes[row]),
            )
        track += max(lane, default=0) + 1


def save_timeline(path: Path, result: Result) -> None:
    """Write the timeline of a result to a JSON file that ui.perfetto.dev opens."""
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"lost_transfers": result.transfers.lost},
        "traceEvents": list(timeline_events(result)),
    }
    atomic_write_bytes(path, json.dumps(document, separators=(",", ":")).encode())
