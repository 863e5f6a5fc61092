"""Timelines in the Chrome trace format, for ui.perfetto.dev.

Tracks: kernels, stalls, one for each channel (a channel carries one block at a time, so slices never overlap; the viewer
drops slices that do), and counters of the bytes in GPU, host and SSD.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pagetide.model.columnar import atomic_write_bytes
from pagetide.model.result import Result
from pagetide.model.workload.workload import Workload

__all__ = ["save_timeline", "timeline_events"]

_PROCESS = 1
_KERNELS, _STALLS, _FIRST_CHANNEL = 1, 2, 10


def _us(time_ps: int) -> float:
    """Microseconds with three decimals: whole nanoseconds, as the viewer wants them."""
    return round(time_ps / 1000) / 1000


def _slice(
    track: int, name: str, category: str, start_ps: int, end_ps: int, **args: Any
) -> dict[str, Any]:
    start, end = _us(start_ps), _us(end_ps)
    return {
        "ph": "X",
        "pid": _PROCESS,
        "tid": track,
        "name": name,
        "cat": category,
        "ts": start,
        "dur": round(end - start, 3),
        "args": args,
    }


def _label(what: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": _PROCESS, "tid": track, "name": what, "args": {"name": name}}


def timeline_events(result: Result, workload: Workload) -> Iterator[dict[str, Any]]:
    """Yield the trace events of one measured iteration."""
    yield _label("process_name", 0, f"{result.workload} {result.policy} ({result.profile})")
    yield _label("thread_name", _KERNELS, "kernels")
    yield _label("thread_name", _STALLS, "stalls")
    for number, channel in enumerate(result.channels):
        yield _label("thread_name", _FIRST_CHANNEL + number, channel)
    for k, name in enumerate(workload.kernels.names):
        ready, start, end = int(result.ready_ps[k]), int(result.start_ps[k]), int(result.end_ps[k])
        if start > ready:
            yield _slice(
                _STALLS,
                name,
                "stall",
                ready,
                start,
                kernel=k,
                fault_blocks=int(result.fault_blocks[k]),
            )
        yield _slice(_KERNELS, name, "kernel", start, end, kernel=k)
        for place, used in zip(
            ("GPU", "host", "SSD"), result.occupancy_bytes[k].tolist(), strict=True
        ):
            yield {
                "ph": "C",
                "pid": _PROCESS,
                "name": f"{place} bytes",
                "ts": _us(start),
                "args": {"bytes": used},
            }
    moved = result.transfers
    for channel, tensor, cause, start, end, size in zip(
        moved.channel.tolist(),
        moved.tensor.tolist(),
        moved.cause.tolist(),
        moved.start_ps.tolist(),
        moved.end_ps.tolist(),
        moved.size_bytes.tolist(),
        strict=True,
    ):
        yield _slice(
            _FIRST_CHANNEL + channel,
            workload.tensors.names[tensor],
            "gpu_memcpy",
            start,
            end,
            tensor=tensor,
            cause=result.causes[cause],
            bytes=size,
        )


def save_timeline(path: Path, result: Result, workload: Workload) -> None:
    """Write the timeline of a result to a JSON file that ui.perfetto.dev opens."""
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"lost_transfers": result.transfers.lost},
        "traceEvents": list(timeline_events(result, workload)),
    }
    atomic_write_bytes(path, json.dumps(document, separators=(",", ":")).encode())
