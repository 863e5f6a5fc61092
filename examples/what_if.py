"""What SSD bandwidth does G10's plan need when kernels run faster than the captured ones? One table, a few seconds.

BERT-base at batch 384 without host memory, so that every evicted byte goes to the SSD.
"""

from pagetide.model import engine
from pagetide.model.planners import get_planner
from pagetide.model.system import load_system
from pagetide.model.workload import zoo

BANDWIDTHS = ("3.2 GB/s", "6.4 GB/s", "12.8 GB/s")
SPEEDUPS = (1.0, 2.0, 4.0)


def main() -> None:
    """Print the fraction of ideal for each SSD bandwidth (rows) and kernel speed-up (columns)."""
    step = zoo.load("bert-base", batch=384)
    planner = get_planner("g10")
    print("SSD bandwidth  " + "".join(f"{f'kernels {s:g}x':>12}" for s in SPEEDUPS))
    for bandwidth in BANDWIDTHS:
        system = load_system(
            overrides=[
                "host.memory=0 GiB",
                f"ssd.read_bandwidth={bandwidth}",
                f"ssd.write_bandwidth={bandwidth}",
            ]
        )
        cells = []
        for speedup in SPEEDUPS:
            workload = step.scaled(speedup)
            result = engine.run(workload, planner.plan(workload, system), system)
            cells.append(f"{result.fraction_of_ideal:12.3f}")
        print(f"{bandwidth:13s}  " + "".join(cells))


if __name__ == "__main__":
    main()
