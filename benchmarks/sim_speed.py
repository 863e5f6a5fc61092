"""Speed of the RTL simulation: cocotb with the clock in HDL against a bare C++ loop around the same model.

Both run the same Verilog, the same traffic and memory (`sim/bench/bench.cpp`), the same stream: the page touches of one
iteration of BERT-base at batch 256, 2 MiB each. The bare loop has no VPI, no cocotb and no HDL clock: it toggles the clock and
evaluates. Runs alternate, so that a change of the machine's speed falls on both. Times are wall times of whole processes, start
of Python included. Both must write the same log, byte for byte; else the script fails.
"""

import argparse
import hashlib
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from pagetide.hw.config import PRESETS
from pagetide.hw.top import Mmu
from pagetide.model.workload import zoo
from pagetide.model.workload.lowering import lay_out, lower
from pagetide.sim import bench
from pagetide.sim.build import build, build_program
from pagetide.sim.placement import place
from pagetide.sim.runner import run
from pagetide.sim.translate import MemoryModel, prepare

RUNS = 3


def measure(preset: str = "small", batch: int = 256) -> dict[str, object]:
    """Return cycles per second of both, median of `RUNS` alternating runs, and the median of their ratios."""
    config = PRESETS[preset]
    step = zoo.load("bert-base", batch=batch)
    layout = lay_out(step, 2 << 20)
    stream = lower(step, layout, requesters=config.ports)
    placed = place(
        step, layout, pa_bits=config.pa_bits, memory_address_bits=config.memory_address_bits
    )
    memory = MemoryModel(latency_cycles=200)
    cocotb_model = build(bench.bench_design(Mmu(config)))
    rates: dict[str, list[float]] = {"cocotb": [], "bare": []}
    logs = set()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bare_folder = folder / "bare"
        bare_folder.mkdir()
        bare_model = build_program(bench.bare_design(Mmu(config)), bare_folder)
        path = prepare(folder, stream, placed.table.image(), config, memory)
        for _ in range(RUNS):
            for kind in rates:
                began = time.perf_counter()
                if kind == "cocotb":
                    run(
                        cocotb_model,
                        "pagetide.sim.bench.cocotb_main",
                        folder=folder,
                        env={"PAGETIDE_BENCH": str(path)},
                    )
                else:
                    environment = {**os.environ, "PAGETIDE_BENCH": str(path)}
                    subprocess.run(
                        [bare_model], env=environment, check=True, stdout=subprocess.DEVNULL
                    )
                took = time.perf_counter() - began
                summary = dict(
                    line.split() for line in (folder / "summary.txt").read_text().splitlines()
                )
                rates[kind].append(int(summary["cycles"]) / took)
                logs.add(hashlib.sha256((folder / "log.bin").read_bytes()).hexdigest())
    if len(logs) != 1:
        raise SystemExit("the two simulations disagree: their logs of the responses differ")
    ratios = sorted(a / b for a, b in zip(rates["cocotb"], rates["bare"], strict=True))
    return {
        "preset": preset,
        "translations": len(stream),
        "cycles": int(summary["cycles"]),
        "cocotb_cycles_per_s": sorted(rates["cocotb"])[RUNS // 2],
        "cocotb_iteration_s": int(summary["cycles"]) / sorted(rates["cocotb"])[RUNS // 2],
        "bare_cycles_per_s": sorted(rates["bare"])[RUNS // 2],
        "ratio": ratios[RUNS // 2],
        "ratio_range": [ratios[0], ratios[-1]],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=sorted(PRESETS), default="small", help="MMU preset")
    parser.add_argument("--batch", type=int, default=256, help="batch of BERT-base")
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.preset, arguments.batch), indent=2))
