"""RTL of the unified-memory MMU in Amaranth: page-table formats, buses, TLBs, walker and the whole unit.

Nothing here imports `pagetide.model` or `pagetide.sim`.
"""
