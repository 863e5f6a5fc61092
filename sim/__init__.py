"""Everything that makes the RTL run: model builds and their cache, cocotb, drivers, device models, benches, scoreboards.

The way of a design: Amaranth component -> Verilog -> Verilator (`pagetide.sim.build`) -> cocotb (`pagetide.sim.runner`).
"""
