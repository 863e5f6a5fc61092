"""Stream arbiters."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["RoundRobinArbiter"]


class RoundRobinArbiter(wiring.Component):
    """Merge `ports` streams into one, each item marked with the port it came from.

    The output is a register: one item per cycle, latency 1 cycle, and what is offered stays until taken. Whoever was
    served last has the lowest priority, so that a waiting port is served after at most `ports` - 1 others.

    Parameters
    ----------
    shape : shape-like
        Payload of the inputs.
    ports : int
        Number of inputs, at least 1.

    Members
    -------
    i : In(stream).array(ports)
        Inputs.
    o : Out(stream)
        Payload ``item`` and ``port``.
    """

    def __init__(self, shape, *, ports):
        if not isinstance(ports, int) or ports < 1:
            raise TypeError(f"Number of arbiter ports must be a positive integer, not {ports!r}")
        self._shape = shape
        self._ports = ports
        layout = data.StructLayout({"item": shape, "port": range(ports)})
        super().__init__(
            {"i": In(stream.Signature(shape)).array(ports), "o": Out(stream.Signature(layout))}
        )

    def elaborate(self, platform):
        """Return the hardware (Amaranth calls this)."""
        m = Module()
        ports = self._ports
        load = Signal()
        m.d.comb += load.eq(~self.o.valid | self.o.ready)
        requests = Signal(ports)
        m.d.comb += requests.eq(Cat(i.valid for i in self.i))
        # Ports above the one served last come first, then all of them, lowest first.
        above = Signal(ports)
        first = Signal(ports)
        grant = Signal(ports)
        m.d.comb += first.eq(Mux((requests & above).any(), requests & above, requests))
        m.d.comb += grant.eq(first & (~first + 1)[:ports])
        for n, i in enumerate(self.i):
            m.d.comb += i.ready.eq(load & grant[n])
        with m.If(load):
            m.d.sync += self.o.valid.eq(requests.any())
            for n, i in enumerate(self.i):
                with m.If(grant[n]):
                    m.d.sync += [
                        self.o.payload.item.eq(i.payload),
                        self.o.payload.port.eq(n),
                        above.eq(Const(((1 << ports) - 1) & ~((2 << n) - 1), ports)),
                    ]
        return m
