"""Parameters of the MMU: one validated object with presets."""

import dataclasses
import difflib

from .checks import check_int

__all__ = ["PRESETS", "MmuConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MmuConfig:
    """Parameters of `pagetide.hw.top.Mmu`.

    Raises
    ------
    TypeError
        If a number is not an integer.
    ValueError
        If a number is outside its range, or two disagree; the message says what is allowed.
    """

    ports: int = 4
    """Requester ports, each with an L1 TLB of its own; 1 to 64."""
    id_width: int = 6
    """Width of a requester's id in bits; 1 to 16."""
    asid_bits: int = 8
    """Width of the address-space tag in bits; 0 to 16. All address spaces share one root table so far."""
    l1_entries: int = 16
    """Entries of each fully associative L1 TLB; a power of two from 4 to 64."""
    l1_latency: int = 1
    """Cycles from an accepted request to its response on a hit: 1, or 2 with match and select in separate cycles."""
    miss_slots: int = 4
    """Walks that each L1 TLB may have outstanding; 1 to 16."""
    miss_merges: int = 4
    """Requests to the same 4 KB page that wait on one walk; 1 to 16."""
    walker_contexts: int = 8
    """Walks in flight in the walker; 1 to 64."""
    walker_pipelined: bool = False
    """True: table words are registered before they are decoded (one more cycle per level, shorter paths)."""
    pa_bits: int = 47
    """Width of physical addresses of pages in bits; 32 to 58. NVIDIA's note says that hardware does 47."""
    memory_address_bits: int = 47
    """Width of addresses on the memory port in bits; 32 to 58."""
    memory_data_bits: int = 128
    """Width of the memory port's data in bits: 128, 256, 512 or 1024 (a dual PDE0 comes in one beat)."""
    counter_bits: int = 48
    """Width of event counters in bits; 8 to 64. They wrap."""

    def __post_init__(self):
        for name, low, high in (
            ("ports", 1, 64),
            ("id_width", 1, 16),
            ("asid_bits", 0, 16),
            ("l1_entries", 4, 64),
            ("l1_latency", 1, 2),
            ("miss_slots", 1, 16),
            ("miss_merges", 1, 16),
            ("walker_contexts", 1, 64),
            ("pa_bits", 32, 58),
            ("memory_address_bits", 32, 58),
            ("memory_data_bits", 128, 1024),
            ("counter_bits", 8, 64),
        ):
            check_int(name, getattr(self, name), low, high)
        if not isinstance(self.walker_pipelined, bool):
            raise TypeError(f"walker_pipelined must be true or false, not {self.walker_pipelined!r}")
        for name in ("l1_entries", "memory_data_bits"):
            value = getattr(self, name)
            if value & (value - 1):
                raise ValueError(f"{name} must be a power of two, not {value!r}")

    @classmethod
    def from_dict(cls, values, *, preset=None):
        """Build a configuration from a mapping of parameter names to values, over a preset if one is named.

        Raises
        ------
        ValueError
            For an unknown parameter or preset (with the nearest known name), or a value that is not allowed.
        """
        known = [f.name for f in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise ValueError(f"Unknown MMU parameter {name!r}; {_hint(name, known)}")
        if preset is None:
            return cls(**values)
        if preset not in PRESETS:
            raise ValueError(f"Unknown MMU preset {preset!r}; {_hint(preset, list(PRESETS))}")
        return dataclasses.replace(PRESETS[preset], **values)

    def to_dict(self) -> dict:
        """Return all parameters by name; `from_dict` reads it back."""
        return dataclasses.asdict(self)


def _hint(name, known):
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"


PRESETS: dict[str, MmuConfig] = {
    "tiny": MmuConfig(
        ports=2,
        id_width=3,
        asid_bits=1,
        l1_entries=4,
        l1_latency=1,
        miss_slots=2,
        miss_merges=2,
        walker_contexts=2,
    ),
    "small": MmuConfig(
        ports=2,
        id_width=6,
        asid_bits=4,
        l1_entries=8,
        l1_latency=2,
        miss_slots=4,
        miss_merges=4,
        walker_contexts=8,
        walker_pipelined=True,
    ),
    "paper": MmuConfig(
        ports=8,
        id_width=8,
        asid_bits=8,
        l1_entries=32,
        l1_latency=1,
        miss_slots=8,
        miss_merges=4,
        walker_contexts=32,
        memory_data_bits=256,
    ),
}
"""`tiny` for proofs and quick tests, `small` for FPGAs, `paper` like an A100 (32-entry L1s, 32 walks)."""
