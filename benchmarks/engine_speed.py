"""Speed and memory of planner and engine: wall time after compilation, and the peak memory of a process of its own.

The G10 tables of BERT-Base at batch 256 are taken if their folder is given (or beside the checkout); else the zoo's BERT-base.
"""

import argparse
import json
import resource
import time
from pathlib import Path

from pagetide.model import engine
from pagetide.model.planners import get_planner
from pagetide.model.system import load_system
from pagetide.model.workload import Workload, zoo
from pagetide.model.workload.g10_tables import load_g10

RUNS = 5


def workload(data: Path) -> Workload:
    """Return the workload to measure."""
    return load_g10(data, "BERT_Base", 256) if data.is_dir() else zoo.load("bert-base", batch=256)


def measure(data: Path, policy: str = "g10") -> dict[str, object]:
    """Return median seconds of planning and of running two iterations, and the peak memory of this process."""
    system = load_system()
    began = time.perf_counter()
    step = workload(data)
    planner = get_planner(policy)
    engine.run(step, planner.plan(step, system), system)
    first = time.perf_counter() - began
    plan_s, run_s = [], []
    for _ in range(RUNS):
        began = time.perf_counter()
        plan = planner.plan(step, system)
        planned = time.perf_counter()
        result = engine.run(step, plan, system)
        plan_s.append(planned - began)
        run_s.append(time.perf_counter() - planned)
    return {
        "workload": step.name,
        "policy": policy,
        "first_call_s": first,
        "plan_s": sorted(plan_s)[RUNS // 2],
        "run_two_iterations_s": sorted(run_s)[RUNS // 2],
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "fraction_of_ideal": result.fraction_of_ideal,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data" / "g10"
    )
    print(json.dumps(measure(parser.parse_args().data), indent=2))
