"""Queues between stream ports."""

from amaranth import *
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["StreamQueue", "TwoEntryQueue"]


class TwoEntryQueue(wiring.Component):
    """Two-entry queue in registers that cuts every path between its ports.

    `i.ready` and `o.valid` come from registers. One item per cycle; latency 1 cycle. Order is kept. After reset it is empty.

    Parameters
    ----------
    shape : shape-like
        Payload.

    Members
    -------
    i : In(stream)
        Items in; ready while fewer than two are held.
    o : Out(stream)
        Items out.
    level : Out(2)
        Items held, 0 to 2.
    """

    def __init__(self, shape):
        self._shape = shape
        super().__init__(
            {"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape)), "level": Out(2)}
        )

    def elaborate(self, platform):
        """Return the hardware (Amaranth calls this)."""
        m = Module()
        head = Signal(self._shape, reset_less=True)
        tail = Signal(self._shape, reset_less=True)
        push = Signal()
        pop = Signal()
        m.d.comb += [
            self.i.ready.eq(~self.level[1]),
            self.o.valid.eq(self.level != 0),
            self.o.payload.eq(head),
            push.eq(self.i.valid & self.i.ready),
            pop.eq(self.o.valid & self.o.ready),
        ]
        m.d.sync += self.level.eq(self.level + push - pop)
        with m.If(pop | (self.level == 0)):
            with m.If(self.level[1]):
                m.d.sync += head.eq(tail)
            with m.Else():
                m.d.sync += head.eq(self.i.payload)
        with m.If(push):
            m.d.sync += tail.eq(self.i.payload)
        return m


class StreamQueue(wiring.Component):
    """First-in first-out queue with stream ports, over memory with asynchronous read.

    One item per cycle; latency 1 cycle; `i.ready` and `o.valid` do not depend on the other port's wires. After reset
    it is empty.

    Parameters
    ----------
    shape : shape-like
        Payload.
    depth : int
        Items held, at least 1.

    Members
    -------
    i : In(stream)
        Items in; ready unless full.
    o : Out(stream)
        Items out.
    level : Out(range(depth + 1))
        Items held.
    """

    def __init__(self, shape, *, depth):
        if not isinstance(depth, int) or depth < 1:
            raise TypeError(f"Queue depth must be a positive integer, not {depth!r}")
        self._shape = shape
        self._depth = depth
        super().__init__(
            {
                "i": In(stream.Signature(shape)),
                "o": Out(stream.Signature(shape)),
                "level": Out(range(depth + 1)),
            }
        )

    def elaborate(self, platform):
        """Return the hardware (Amaranth calls this)."""
        m = Module()
        width = Shape.cast(self._shape).width
        m.submodules.fifo = queue = fifo.SyncFIFO(width=width, depth=self._depth)
        m.d.comb += [
            queue.w_data.eq(self.i.payload),
            queue.w_en.eq(self.i.valid),
            self.i.ready.eq(queue.w_rdy),
            self.o.payload.eq(queue.r_data),
            self.o.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.o.ready),
            self.level.eq(queue.level),
        ]
        return m
