"""Python drivers and monitors of ready/valid streams, for directed and constrained-random tests.

All of them act between two rising edges: inputs change at the falling edge, and whether the next rising edge carries a
transfer is read once everything has settled. So any number of them can work on one clock without an order between them.
For long runs see `pagetide.sim.bench`: here Python wakes every cycle.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import cocotb
from cocotb.handle import LogicArrayObject, LogicObject
from cocotb.triggers import FallingEdge, ReadOnly

__all__ = [
    "Gate",
    "StreamDriver",
    "StreamMonitor",
    "StreamRule",
    "StreamRuleError",
    "always",
    "pack",
    "port",
    "random_gate",
    "unpack",
]

Gate = Callable[[], bool]
"""Whether a driver offers, or a monitor takes, in this cycle."""


class StreamRuleError(AssertionError):
    """A stream broke its rule: once valid, it stays valid with the same payload until it is taken."""


def pack(layout: Any, fields: Mapping[str, Any]) -> int:
    """Pack field values into the integer that a structured port carries.

    Args:
        layout: an Amaranth `data.Layout` (least significant field first, as in Verilog).
        fields: value of each field by name (integers or enum members); fields not named are 0.

    Raises:
        ValueError: a field is unknown or its value does not fit.
    """
    from amaranth.hdl import Shape

    known = dict(layout)
    word = 0
    for name, value in fields.items():
        if name not in known:
            raise ValueError(f"no field {name!r}; there are {', '.join(map(repr, known))}")
        width = Shape.cast(known[name].shape).width
        number = int(getattr(value, "value", value))
        if not 0 <= number < 1 << width:
            raise ValueError(f"field {name!r} is {number:#x}, which does not fit {width} bits")
        word |= number << known[name].offset
    return word


def unpack(layout: Any, word: int) -> dict[str, int]:
    """Return the fields of a structured port's value as integers by name."""
    from amaranth.hdl import Shape

    return {
        name: word >> field.offset & (1 << Shape.cast(field.shape).width) - 1
        for name, field in dict(layout).items()
    }


def port(dut: Any, *path: str | int) -> Any:
    """Return the handle of a port by the path of its interface members: ``port(dut, "requests", 0, "valid")``."""
    return getattr(dut, "__".join(str(part) for part in path))


def always() -> bool:
    """The gate that is always open."""
    return True


def random_gate(seed: int, probability: float) -> Gate:
    """Return a gate that is open in each cycle with this probability."""
    chance = random.Random(seed)
    return lambda: chance.random() < probability


class StreamRule:
    """Checks one stream, cycle by cycle: what is offered stays, unchanged, until it is taken.

    Args:
        name: how the stream is called in the message.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: int | None = None

    def check(self, word: int | None, taken: bool) -> None:
        """Note a cycle.

        Args:
            word: the packed payload if the stream is valid, else None.
            taken: whether the other side is ready.

        Raises:
            StreamRuleError: the item of the cycle before was not taken, and is gone or has changed.
        """
        if self._waiting is not None and word != self._waiting:
            what = (
                "withdrew its item"
                if word is None
                else f"changed its item from {self._waiting:#x} to {word:#x}"
            )
            raise StreamRuleError(f"stream {self._name} {what} before it was taken")
        self._waiting = None if taken else word


class StreamDriver:
    """Offers items on an input stream of the design, in order.

    Args:
        dut: the design's handle.
        path: interface path of the stream, for instance ``("requests", 0)``.
        layout: payload layout; None for a plain integer payload.
        gate: asked before a new item is offered.
        clock: the clock's handle; ``dut.clk`` if not given.
    """

    def __init__(
        self,
        dut: Any,
        *path: str | int,
        layout: Any = None,
        gate: Gate = always,
        clock: LogicObject | None = None,
    ) -> None:
        self._valid: LogicObject = port(dut, *path, "valid")
        self._ready: LogicObject = port(dut, *path, "ready")
        self._payload: LogicArrayObject = port(dut, *path, "payload")
        self._clock = clock if clock is not None else dut.clk
        self._layout = layout
        self._gate = gate
        self._queue: deque[tuple[int, Any]] = deque()
        self.accepted = 0
        """Items that the design has taken."""
        self.on_accept: Callable[[Any], None] | None = None
        """Called with each item (as given to `send`) when the design takes it."""
        self._valid.value = 0

    def send(self, item: Any) -> None:
        """Queue an item: a mapping of fields if there is a layout, else an integer."""
        self._queue.append(
            (pack(self._layout, item) if self._layout is not None else int(item), item)
        )

    @property
    def idle(self) -> bool:
        """True when every item has been taken."""
        return not self._queue

    def start(self) -> None:
        """Start driving."""
        cocotb.start_soon(self._run())

    async def _run(self) -> None:
        offered = False
        falling = FallingEdge(self._clock)
        settled = ReadOnly()
        while True:
            await falling
            if not offered and self._queue and self._gate():
                offered = True
                self._payload.value = self._queue[0][0]
            self._valid.value = int(offered)
            if offered:
                await settled
                if int(self._ready.value):
                    offered = False
                    _, item = self._queue.popleft()
                    self.accepted += 1
                    if self.on_accept is not None:
                        self.on_accept(item)


class StreamMonitor:
    """Takes items from an output stream of the design and checks the stream rule.

    Args:
        dut: the design's handle.
        path: interface path of the stream.
        layout: payload layout; None for a plain integer payload.
        gate: whether it is ready, asked each cycle.
        clock: the clock's handle; ``dut.clk`` if not given.
    """

    def __init__(
        self,
        dut: Any,
        *path: str | int,
        layout: Any = None,
        gate: Gate = always,
        clock: LogicObject | None = None,
    ) -> None:
        self._name = "__".join(map(str, path))
        self._valid: LogicObject = port(dut, *path, "valid")
        self._ready: LogicObject = port(dut, *path, "ready")
        self._payload: LogicArrayObject = port(dut, *path, "payload")
        self._clock = clock if clock is not None else dut.clk
        self._layout = layout
        self._gate = gate
        self.items: deque[Any] = deque()
        """Items taken and not yet fetched, oldest first."""
        self.on_item: Callable[[Any], None] | None = None
        """If set, called with each item instead of keeping it in `items`."""
        self._ready.value = 0

    def start(self) -> None:
        """Start taking."""
        cocotb.start_soon(self._run())

    async def _run(self) -> None:
        rule = StreamRule(self._name)
        falling = FallingEdge(self._clock)
        settled = ReadOnly()
        while True:
            await falling
            ready = self._gate()
            self._ready.value = int(ready)
            await settled
            valid = int(self._valid.value)
            word = int(self._payload.value) if valid else None
            rule.check(word, ready)
            if word is not None and ready:
                item = unpack(self._layout, word) if self._layout is not None else word
                if self.on_item is not None:
                    self.on_item(item)
                else:
                    self.items.append(item)
