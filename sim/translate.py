"""Translating a workload's page touches with the RTL MMU, checked access by access.

`simulate` is the whole job: lower, place, build the model, run, compare. The measured time of a walk is from its start in the
walker (a context is taken) to the cycle in which its answer leaves, both from probes of the design.
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagetide.hw.config import MmuConfig
from pagetide.hw.pagetable.nvidia_v2 import PteAperture, Status
from pagetide.hw.pagetable.table import TableImage
from pagetide.hw.top import Mmu
from pagetide.model.errors import InputError
from pagetide.model.plan import MigrationPlan
from pagetide.model.workload import Csr, Workload
from pagetide.model.workload.lowering import AccessStream, lay_out, lower
from pagetide.sim import bench
from pagetide.sim.build import Build, Trace, build
from pagetide.sim.placement import locations_of_plan, place
from pagetide.sim.runner import run as run_cocotb
from pagetide.sim.scoreboard import RECORD, judge

__all__ = [
    "MemoryModel",
    "Stress",
    "TranslationResult",
    "build_bench",
    "prepare",
    "read_result",
    "simulate",
    "simulate_workload",
]


_WATCHDOG_CYCLES = 100_000


@dataclass(frozen=True)
class MemoryModel:
    """The memory behind the walker's port.

    Attributes:
        latency_cycles: from a read's handshake to its answer's, at least 1.
        jitter_cycles: up to this much more, at random for each read; answers then come out of order.
        outstanding_reads: reads that the memory holds at once.
        read_interval_cycles: from one read's handshake to the next at the earliest; 1 is a read a cycle.
        error_ppm: reads in a million that end with SLVERR.
    """

    latency_cycles: int = 200
    jitter_cycles: int = 0
    outstanding_reads: int = 256
    read_interval_cycles: int = 1
    error_ppm: int = 0

    def __post_init__(self) -> None:
        if self.latency_cycles < 1:
            raise InputError(f"memory latency must be at least 1 cycle, not {self.latency_cycles}")
        if self.outstanding_reads < 2:
            raise InputError(
                f"the memory must hold at least 2 reads at once, not {self.outstanding_reads}"
            )
        if self.read_interval_cycles < 1:
            raise InputError(
                f"the memory's read interval must be at least 1 cycle, not {self.read_interval_cycles}"
            )
        if self.jitter_cycles < 0 or not 0 <= self.error_ppm <= 1_000_000:
            raise InputError(
                "memory jitter must not be negative and errors must be 0 to 1000000 in a million"
            )


@dataclass(frozen=True)
class Stress:
    """Disturbance for tests: percentages of cycles, cycles between invalidations of everything (0: none)."""

    hold_requests_percent: int = 0
    hold_responses_percent: int = 0
    hold_memory_percent: int = 0
    invalidate_every_cycles: int = 0


@dataclass(frozen=True)
class TranslationResult:
    """What a run showed. Times in cycles of the MMU's clock.

    Attributes:
        workload: name of the stream's workload.
        page_bytes: size of the pages.
        touch_bytes: granularity of the stream.
        translations: requests, each answered once if the verdict is clean.
        mismatches, lost, duplicates: the scoreboard's counts.
        rule_breaks: cycles in which an output stream of the design withdrew or changed what it offered.
        first_mismatch: sentence on what went wrong first; on a hang, what was outstanding. Empty if all is right.
        statuses: responses by status name.
        apertures: OK responses by the aperture of their page.
        l1_hit_rate: share of the lookups that hit.
        walks: walks done.
        walk_mean_cycles, walk_p50_cycles, walk_p99_cycles: time of a walk.
        cycles: cycles from reset to the last response.
        seconds: wall time of the run, without building the model.
        cycles_per_second: simulated cycles a second of wall time.
        counters: the design's own counters by dotted name.
        memory: the memory's parameters.
        mmu: the MMU's parameters.
        seed: seed of everything random.
        waves: waveform file, if one was asked for.
    """

    workload: str
    page_bytes: int
    touch_bytes: int
    translations: int
    mismatches: int
    lost: int
    duplicates: int
    rule_breaks: int
    first_mismatch: str
    statuses: dict[str, int]
    apertures: dict[str, int]
    l1_hit_rate: float
    walks: int
    walk_mean_cycles: float
    walk_p50_cycles: int
    walk_p99_cycles: int
    cycles: int
    seconds: float
    cycles_per_second: float
    counters: dict[str, int]
    memory: dict[str, int]
    mmu: dict[str, Any]
    seed: int
    waves: str | None = None
    extra: dict[str, int] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """True if every request had exactly one response, every response was right, and no stream broke its rule."""
        return not (self.mismatches or self.lost or self.duplicates or self.rule_breaks)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return asdict(self)


def prepare(
    folder: Path,
    stream: AccessStream,
    image: TableImage,
    config: MmuConfig,
    memory: MemoryModel,
    stress: Stress = Stress(),
    seed: int = 1,
) -> Path:
    """Write the bench's input files into a folder and return the path of its configuration file.

    Raises:
        InputError: the stream has another number of requesters than the MMU has ports, or no touches.
    """
    if stream.requesters != config.ports:
        raise InputError(
            f"the stream has {stream.requesters} requesters, but the MMU has {config.ports} ports"
        )
    if not len(stream):
        raise InputError(
            f"the access stream of {stream.workload!r} is empty; lower at least one kernel with operands"
        )
    order = port_order(stream)
    words = stream.va | stream.access.astype(np.uint64) << np.uint64(56)
    counts = np.bincount(stream.requester, minlength=config.ports).astype(np.uint64)
    trace = np.concatenate([counts, words[order], stream.kernel[order].astype(np.uint64)])
    trace.tofile(folder / "trace.bin")
    table = np.concatenate(
        [np.array([len(image.bases)], dtype=np.uint64), image.bases, image.contents.reshape(-1)]
    )
    table.tofile(folder / "image.bin")
    settings = {
        "trace": folder / "trace.bin",
        "image": folder / "image.bin",
        "log": folder / "log.bin",
        "summary": folder / "summary.txt",
        "root": image.root,
        "root_aperture": int(image.root_aperture),
        "latency": memory.latency_cycles,
        "jitter": memory.jitter_cycles,
        "outstanding": memory.outstanding_reads,
        "read_interval": memory.read_interval_cycles,
        "error_ppm": memory.error_ppm,
        "hold_requests": stress.hold_requests_percent,
        "hold_responses": stress.hold_responses_percent,
        "hold_memory": stress.hold_memory_percent,
        "invalidate_every": stress.invalidate_every_cycles,
        "watchdog": _WATCHDOG_CYCLES
        + 100 * (memory.latency_cycles + memory.jitter_cycles + memory.read_interval_cycles),
        "seed": seed,
    }
    path = folder / "bench.txt"
    path.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    return path


def port_order(stream: AccessStream) -> NDArray[np.int64]:
    """Order of the touches in the bench's files: requester by requester, each in order of issue; int64[N]."""
    return np.argsort(stream.requester, kind="stable")


def read_result(
    folder: Path,
    stream: AccessStream,
    image: TableImage,
    config: MmuConfig,
    memory: MemoryModel,
    *,
    seconds: float,
    seed: int = 1,
    waves: Path | None = None,
) -> TranslationResult:
    """Read what the bench left in a folder, judge it, and return the result."""
    summary: dict[str, int] = {}
    for line in (folder / "summary.txt").read_text().splitlines():
        key, value = line.split()
        summary[key] = int(value)
    records = np.fromfile(folder / "log.bin", dtype=RECORD)
    order = port_order(stream)
    verdict = judge(
        records,
        stream.va[order],
        stream.access[order],
        image,
        port=stream.requester[order],
        kernel=stream.kernel[order],
        bus_errors=memory.error_ppm > 0,
    )
    trouble = [verdict.first] if verdict.first else []
    if summary["rule_breaks"]:
        trouble.insert(0, _rule_break(summary, config))
    if summary["stray"]:
        trouble.append(f"{summary['stray']} responses with the id of no request in flight")
    if summary["hung"]:
        trouble.insert(0, _outstanding(summary, config))
    histogram = sorted(
        (int(key.partition(".")[2]), value)
        for key, value in summary.items()
        if key.startswith("walk_latency.")
    )
    lookups = sum(
        value
        for key, value in summary.items()
        if key.startswith("mmu.l1.") and key.endswith(".lookups")
    )
    hits = sum(
        value
        for key, value in summary.items()
        if key.startswith("mmu.l1.") and key.endswith(".hits")
    )
    codes, counts = np.unique(records["status"][records["answers"] > 0], return_counts=True)
    places, place_counts = np.unique(
        records["aperture"][records["status"] == Status.OK], return_counts=True
    )
    return TranslationResult(
        workload=stream.workload,
        page_bytes=stream.page_bytes,
        touch_bytes=stream.touch_bytes,
        translations=summary["requests"],
        mismatches=verdict.mismatches,
        lost=verdict.lost,
        duplicates=verdict.duplicates + summary["stray"],
        rule_breaks=summary["rule_breaks"],
        first_mismatch="; ".join(trouble),
        statuses={
            _name(Status, code): int(n)
            for code, n in zip(codes.tolist(), counts.tolist(), strict=True)
        },
        apertures={
            _name(PteAperture, code): int(n)
            for code, n in zip(places.tolist(), place_counts.tolist(), strict=True)
        },
        l1_hit_rate=hits / lookups if lookups else 0.0,
        walks=summary["walks"],
        walk_mean_cycles=summary["walk_cycles"] / summary["walks"] if summary["walks"] else 0.0,
        walk_p50_cycles=_percentile(histogram, 0.50),
        walk_p99_cycles=_percentile(histogram, 0.99),
        cycles=summary["cycles"],
        seconds=seconds,
        cycles_per_second=summary["cycles"] / seconds if seconds else 0.0,
        counters={key: value for key, value in summary.items() if key.startswith("mmu.")},
        memory=asdict(memory),
        mmu=config.to_dict(),
        seed=seed,
        waves=str(waves) if waves is not None else None,
        extra={key: summary[key] for key in ("reads", "injected_errors", "invalidations")},
    )


def _rule_break(summary: dict[str, int], config: MmuConfig) -> str:
    n = summary["first_break_stream"]
    stream = f"responses of port {n}" if n < config.ports else "read addresses of the memory port"
    return (
        f"the stream of {stream} withdrew or changed its item before it was taken, "
        f"first in cycle {summary['first_break_cycle']}"
    )


def _outstanding(summary: dict[str, int], config: MmuConfig) -> str:
    """What waited for what when the bench gave up, in words."""
    ports = [
        f"port {p}: {summary[f'hang.port.{p}.in_flight']} in flight, "
        f"{summary[f'hang.port.{p}.not_taken']} offered and not taken, "
        f"{summary[f'hang.port.{p}.not_offered']} not yet offered"
        for p in range(config.ports)
    ]
    waiting = [
        text
        for key, text in (
            ("read_not_taken", "a read that the memory does not take"),
            ("answer_not_taken", "an answer of the memory that the design does not take"),
            ("invalidating", "an invalidation that the design does not take"),
        )
        if summary[f"hang.{key}"]
    ]
    return (
        f"hang: no request taken or answered for long, given up in cycle {summary['cycles']}; "
        f"{summary['requests'] - summary['answered']} of {summary['requests']} requests unanswered "
        f"({'; '.join(ports)}); {summary['hang.walks']} walks and {summary['hang.reads']} reads of the memory open"
        + (f"; waiting: {', '.join(waiting)}" if waiting else "")
    )


def _operands(lists: Csr, window: slice) -> NDArray[np.int32]:
    """Ids of the operands of a window of kernels."""
    first, last, _ = window.indices(len(lists.indptr) - 1)
    return lists.ids[int(lists.indptr[first]) : int(lists.indptr[last])]


def _name(kind: Any, code: int) -> str:
    try:
        return str(kind(code).name)
    except ValueError:
        return f"{code:#x}"


def _percentile(histogram: list[tuple[int, int]], share: float) -> int:
    """Smallest value that at least this share of the samples does not exceed."""
    total = sum(count for _, count in histogram)
    seen = 0
    for value, count in histogram:
        seen += count
        if seen >= share * total:
            return value
    return 0


def build_bench(config: MmuConfig, trace: Trace = Trace.NONE) -> Build:
    """Return the model of the fast bench around an MMU, from the cache or newly built (half a minute to two minutes)."""
    waves = trace is not Trace.NONE
    return build(bench.bench_design(Mmu(config), waves=waves), trace=trace)


def simulate(
    stream: AccessStream,
    image: TableImage,
    config: MmuConfig,
    *,
    golden: TableImage | None = None,
    memory: MemoryModel = MemoryModel(),
    stress: Stress = Stress(),
    seed: int = 1,
    waves: Path | None = None,
    trace: Trace = Trace.VCD,
    progress: Callable[[float], None] | None = None,
) -> TranslationResult:
    """Run a stream through the RTL MMU and compare every response with the golden walk.

    Args:
        stream: page touches; as many requesters as the MMU has ports.
        image: the page table in memory.
        config: the MMU's parameters.
        golden: the table that answers are compared with, if not `image`; a test of the scoreboard itself.
        memory: the memory behind the walker.
        stress: disturbance for tests.
        seed: seed of everything random.
        waves: file to keep the waveform in; None: no waveform, which is much faster.
        trace: format of the waveform, if there is one.
        progress: called now and then with the share of the touches answered; from another thread.

    Returns:
        The result; a mismatch is reported in it, not raised.

    Raises:
        InputError: stream and MMU do not fit together.
        BuildError: the model does not build.
        SimulationError: the simulator failed.
    """
    folder = Path(tempfile.mkdtemp(prefix="pagetide-run-"))
    try:
        path = prepare(folder, stream, image, config, memory, stress, seed)
        model = build_bench(config, trace if waves is not None else Trace.NONE)
        report = folder / "progress.txt"
        started = time.perf_counter()
        with _watch(report, len(stream), progress):
            outcome = run_cocotb(
                model,
                "pagetide.sim.bench.cocotb_main",
                seed=seed,
                folder=folder,
                env={"PAGETIDE_BENCH": str(path), "PAGETIDE_PROGRESS": str(report)},
            )
        seconds = time.perf_counter() - started
        if waves is not None and outcome.waves is not None:
            waves.parent.mkdir(parents=True, exist_ok=True)
            partial = waves.with_name(f".{waves.name}.part")
            try:
                shutil.move(outcome.waves, partial)  # a copy, if it is another file system
                partial.replace(waves)
            finally:
                partial.unlink(missing_ok=True)
        return read_result(
            folder, stream, golden or image, config, memory, seconds=seconds, seed=seed, waves=waves
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _watch(report: Path, total: int, progress: Callable[[float], None] | None) -> Iterator[None]:
    """Poll the progress file beside the simulation and pass the share on."""
    if progress is None:
        yield
        return
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(0.2):
            text = report.read_text() if report.exists() else ""
            if text:  # empty while it is being written
                progress(int(text) / total)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def simulate_workload(
    workload: Workload,
    config: MmuConfig,
    *,
    plan: MigrationPlan | None = None,
    page_bytes: int = 2 << 20,
    touch_bytes: int | None = None,
    kernels: range | None = None,
    gpu_bytes: int = 40 << 30,
    memory: MemoryModel = MemoryModel(),
    seed: int = 1,
    waves: Path | None = None,
    trace: Trace = Trace.VCD,
    progress: Callable[[float], None] | None = None,
) -> TranslationResult:
    """Lay a workload out, place its pages, lower its kernels and run `simulate`.

    Args:
        workload: whose touches are translated.
        config: the MMU's parameters.
        plan: if given, tensors lie where the plan keeps them while idle (`locations_of_plan`); else all in GPU memory.
        page_bytes: size of the pages.
        touch_bytes: granularity of the touches; the page size if not given.
        kernels: window of kernels; all if not given.
        gpu_bytes: size of the pool of GPU frames.
        memory, seed, waves, trace, progress: as for `simulate`.
    """
    layout = lay_out(workload, page_bytes)
    stream = lower(
        workload, layout, touch_bytes=touch_bytes, requesters=config.ports, kernels=kernels
    )
    window = slice(kernels.start, kernels.stop) if kernels is not None else slice(None)
    placement = place(
        workload,
        layout,
        mapped=np.concatenate(
            [_operands(lists, window) for lists in (workload.inputs, workload.outputs)]
        ),
        location=locations_of_plan(workload, plan) if plan is not None else None,
        gpu_bytes=gpu_bytes,
        pa_bits=config.pa_bits,
        memory_address_bits=config.memory_address_bits,
    )
    return simulate(
        stream,
        placement.table.image(),
        config,
        memory=memory,
        seed=seed,
        waves=waves,
        trace=trace,
        progress=progress,
    )
