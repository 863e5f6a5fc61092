"""The timing engine: event-driven over blocks of tensors, deterministic, hot loops compiled."""

from pagetide.model.engine.engine import cut_into_blocks, run

__all__ = ["cut_into_blocks", "run"]
