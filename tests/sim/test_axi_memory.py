"""The AXI4 read memory in Python: latency, order, errors."""

from pagetide.sim.build import build_component
from pagetide.sim.runner import run


def test_reads(reader, here) -> None:
    result = run(build_component(reader()), here / "cocotb_axi_memory.py", seed=3)
    assert len(result.tests) == 4
