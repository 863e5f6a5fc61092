"""What a block is: its record, its locations and flight states; shared by the engine's core and the online policies."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = [
    "BLOCK",
    "DELAYED",
    "GPU",
    "HOST",
    "IDLE",
    "NONE",
    "QUEUED",
    "SERVED",
    "SSD",
    "WAITING",
    "compiled",
    "here_or_coming",
]

# Locations of a block.
NONE, GPU, HOST, SSD = 0, 1, 2, 3

# Flight states of a block.
IDLE, WAITING, QUEUED, SERVED, DELAYED = 0, 1, 2, 3, 4

BLOCK = np.dtype(
    [
        ("size", np.int64),  # bytes
        ("remaining", np.float64),  # bytes that have not moved yet
        ("ready_ps", np.int64),  # end of the latency after the transfer
        ("pin", np.int64),  # stamp of the last kernel that needed it
        ("tensor", np.int32),
        ("following", np.int32),  # in its queue
        ("preceding", np.int32),
        ("lru_next", np.int32),  # among the idle GPU blocks, least recently migrated first
        ("lru_prev", np.int32),
        ("queue", np.int8),
        ("channel", np.int8),
        ("location", np.uint8),
        ("flight", np.uint8),
        ("cause", np.uint8),
        ("in_batch", np.bool_),
        ("doomed", np.bool_),  # freed while on the move: dropped on arrival
        ("wanted", np.bool_),  # prefetched while on the way out: fetched on arrival
    ],
    align=True,
)
# Numba leaves no types on what it decorates; the decorator is named once so that all functions are compiled alike.
compiled: Any = njit(cache=True, nogil=True)


@compiled
def here_or_coming(block: NDArray[Any], b: int) -> bool:
    """Whether block `b` is in GPU memory to stay, or on its way there (waiting for a batch or frames included)."""
    return bool((block[b].flight == IDLE) == (block[b].location == GPU))
