"""Timelines: what the viewer needs, and that they say what the result says."""

import dataclasses
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetide.model import engine
from pagetide.model.planners import get_planner
from pagetide.model.result import Result
from pagetide.model.system import load_system
from pagetide.model.timeline import lanes, save_timeline, timeline_events
from pagetide.model.workload import zoo


@pytest.fixture(scope="module", params=["uvm", "g10"])
def result(request: pytest.FixtureRequest) -> Result:
    step = zoo.load("bert-base", batch=48)
    machine = load_system(overrides=["gpu.memory=6 GiB", "host.memory=1 GiB"])
    return engine.run(step, get_planner(request.param).plan(step, machine), machine)


def tracks(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Slices by the name of their track."""
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[names[event["tid"]]].append(event)
    return found


def check_structure(events: list[dict[str, Any]]) -> None:
    """Slices of a track do not overlap (nor nest), every track has one name, counters go forward in time."""
    named = [e["tid"] for e in events if e["name"] == "thread_name"]
    assert len(named) == len(set(named))
    sorting = [e["tid"] for e in events if e["name"] == "thread_sort_index"]
    assert sorting == named
    texts = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert len(texts) == len(set(texts))
    assert {e["pid"] for e in events} == {1}
    for slices in tracks(events).values():
        # Whole nanoseconds: sums of decimal fractions are not exact.
        spans = sorted(
            (round(e["ts"] * 1000), round((e["ts"] * 1000) + e["dur"] * 1000)) for e in slices
        )
        assert all(start >= 0 and end >= start for start, end in spans)
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert end <= start
    counters = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counters[event["name"]].append(event)
    assert set(counters) == {"GPU bytes", "host bytes", "SSD bytes"}
    for samples in counters.values():
        times = [e["ts"] for e in samples]
        assert times == sorted(times)
        assert all(e["args"]["bytes"] >= 0 for e in samples)


def test_structure_and_content(result: Result, tmp_path: Path) -> None:
    save_timeline(tmp_path / "t.json", result)
    document = json.loads((tmp_path / "t.json").read_text())
    events = document["traceEvents"]
    check_structure(events)
    found = tracks(events)
    assert found.keys() <= {"kernels", "stalls", *result.channels}
    assert [e["name"] for e in found["kernels"]] == list(result.kernels.names)
    assert sum(e["dur"] for e in found["kernels"]) == pytest.approx(result.compute_ps / 1e6)
    stalled = np.count_nonzero(np.rint(result.start_ps / 1000) > np.rint(result.ready_ps / 1000))
    assert len(found["stalls"]) == stalled
    assert any(e["args"]["waited_for"] in result.tensors.names for e in found["stalls"])
    for place, channel in enumerate(result.channels):
        moved = result.transfers.size_bytes[result.transfers.channel == place].sum()
        assert sum(e["args"]["bytes"] for e in found[channel]) == moved
    kernels = [e for e in events if e["ph"] == "C" and e["name"] == "GPU bytes"]
    assert [e["args"]["bytes"] for e in kernels] == result.occupancy_bytes[:, 0].tolist()


def test_transfers_that_overlap_get_tracks_of_their_own(result: Result) -> None:
    log = result.transfers
    rows = np.flatnonzero(log.channel == log.channel[0])[:40]
    assert len(rows) > 5
    # Each of them begins where the one before is half done; two begin together.
    end = log.end_ps.copy()
    start = log.start_ps.copy()
    start[rows] = np.arange(len(rows)) * 1_000_000
    start[rows[1]] = start[rows[0]]
    end[rows] = start[rows] + 2_500_000
    kept = np.zeros(len(start), dtype=bool)
    kept[rows] = True
    columns = {
        field.name: getattr(log, field.name)[kept]
        for field in dataclasses.fields(log)
        if field.name not in ("start_ps", "end_ps", "lost")
    }
    busy = dataclasses.replace(
        result,
        transfers=dataclasses.replace(log, start_ps=start[kept], end_ps=end[kept], **columns),
    )
    events = list(timeline_events(busy))
    check_structure(events)
    name = result.channels[int(log.channel[rows[0]])]
    found = tracks(events)
    assert {name, f"{name} (2)", f"{name} (3)"} <= found.keys()
    assert f"{name} (5)" not in found
    assert sum(len(found[key]) for key in found if key.startswith(name)) == len(rows)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=40))
def test_lanes_are_few_and_free_of_overlap(raw: list[tuple[int, int]]) -> None:
    spans = [(start, start + length) for start, length in raw]
    lane = lanes(spans)
    for number in set(lane):
        mine = sorted(span for span, other in zip(spans, lane, strict=True) if other == number)
        for (_, end), (start, _) in itertools.pairwise(mine):
            assert end <= start
    moments = {start for start, _ in spans}
    deepest = max((sum(s <= m < e for s, e in spans) for m in moments), default=0)
    # A span without length takes a lane only where all others are busy at its moment.
    assert max(lane, default=-1) + 1 <= deepest + any(s == e for s, e in spans)
