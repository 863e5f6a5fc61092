"""Pagetide: planned tensor migration over one GPU, host and flash address space.

Four packages: `pagetide.model` (the system-level model), `pagetide.hw` (RTL in Amaranth), `pagetide.sim` (everything
that makes the RTL run) and `pagetide.fpga` (builds for boards). The command line is `pagetide.cli`.
"""

from importlib.metadata import version

__all__ = ["__version__"]

__version__: str = version("pagetide")
