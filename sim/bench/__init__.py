"""The fast bench: clock in HDL, traffic, memory and logging in C++ beside the model, Python only for progress.

`generate` writes the bench around an MMU: a SystemVerilog module that owns the clock and calls `bench_step` once a cycle, and
a header with the place of every port and field, derived from the component. `bench.cpp` is the same for all of them.
`cocotb_main` is the cocotb test that waits for the end.
"""

from pagetide.sim.bench.generate import bare_design, bench_design

__all__ = ["bare_design", "bench_design"]
