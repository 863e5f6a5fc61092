"""The whole unit: L1 TLBs, arbiter and walker."""

from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from .bus.arbiter import RoundRobinArbiter
from .bus.axi4 import Axi4Signature, Feature
from .config import MmuConfig
from .tlb.l1 import L1_COUNTERS, L1Tlb
from .translation import (
    InvalidateRequest,
    RootLayout,
    TranslationRequest,
    TranslationResponse,
    WalkRequest,
)
from .walker.walker import WALKER_COUNTERS, Walker

__all__ = ["Mmu"]


class Mmu(wiring.Component):
    """MMU with one L1 TLB per requester port and one walker shared by all.

    *Latency.* A hit is answered `l1_latency` cycles after its request is accepted. *Throughput.* One hit per cycle and port; for misses see
    `Walker`. *Ordering.* Responses of a port come out of order and carry the request's id. *One answer.* Exactly one response per accepted request.
    *Backpressure.* A port whose responses are not taken stops accepting requests in the end; it does not slow the other ports.
    *Invalidation.* `invalidate` is taken when none is under way. From the pulse of `invalidate_done` on, no response is offered that
    rests on a table read from before the request was taken, and no entry of before is left. The pulse waits for the answers of walks under
    way and for the requesters to take responses already offered. Table updates must be visible to the memory port before the invalidation
    is requested.
    *Reset* forgets everything.

    Parameters
    ----------
    config : MmuConfig

    Members
    -------
    requests : In(stream of TranslationRequest).array(ports)
    responses : Out(stream of TranslationResponse).array(ports)
    memory : Out(Axi4Signature)
        Table reads; see `Walker`.
    root : In(RootLayout)
        Root table; each walk uses what it is when the walk begins.
    invalidate : In(stream of InvalidateRequest)
    invalidate_done : Out(1)
        Pulse: the invalidation is complete.
    walk_start, walk_start_context, walk_done, walk_done_context : Out
        Walk strobes with context number, for latency measurement; see `Walker`.
    l1_counters : Out(L1_COUNTERS).array(ports)
    walker_counters : Out(WALKER_COUNTERS)

    Raises
    ------
    TypeError
        If `config` is no `MmuConfig`.
    """

    def __init__(self, config):
        if not isinstance(config, MmuConfig):
            raise TypeError(f"MMU configuration must be an MmuConfig, not {config!r}")
        self._config = config
        counter = unsigned(config.counter_bits)
        super().__init__(
            {
                "requests": In(
                    stream.Signature(
                        TranslationRequest(id_bits=config.id_width, asid_bits=config.asid_bits)
                    )
                ).array(config.ports),
                "responses": Out(
                    stream.Signature(
                        TranslationResponse(id_bits=config.id_width, pa_bits=config.pa_bits)
                    )
                ).array(config.ports),
                "memory": Out(
                    Axi4Signature(
                        address_bits=config.memory_address_bits,
                        data_bits=config.memory_data_bits,
                        id_bits=(config.walker_contexts - 1).bit_length(),
                        user_bits=1,
                        features={Feature.READ},
                    )
                ),
                "root": In(RootLayout(memory_address_bits=config.memory_address_bits)),
                "invalidate": In(stream.Signature(InvalidateRequest())),
                "invalidate_done": Out(1),
                "walk_start": Out(1),
                "walk_start_context": Out(range(config.walker_contexts)),
                "walk_done": Out(1),
                "walk_done_context": Out(range(config.walker_contexts)),
                "l1_counters": Out(
                    wiring.Signature({name: Out(counter) for name in L1_COUNTERS})
                ).array(config.ports),
                "walker_counters": Out(
                    wiring.Signature({name: Out(counter) for name in WALKER_COUNTERS})
                ),
            }
        )

    @property
    def config(self):
        """The configuration."""
        return self._config

    def probes(self) -> dict[str, str]:
        """Return dotted counter and probe names, each with its signal's path in the generated Verilog."""
        paths = {
            f"mmu.l1.{p}.{name}": f"l1_counters__{p}__{name}"
            for p in range(self._config.ports)
            for name in L1_COUNTERS
        }
        paths |= {f"mmu.walker.{name}": f"walker_counters__{name}" for name in WALKER_COUNTERS}
        paths |= {
            "mmu.walker.walk_start": "walk_start",
            "mmu.walker.walk_start_context": "walk_start_context",
            "mmu.walker.walk_done": "walk_done",
            "mmu.walker.walk_done_context": "walk_done_context",
            "mmu.invalidate_done": "invalidate_done",
        }
        return paths

    def elaborate(self, platform):
        """Return the hardware (Amaranth calls this)."""
        m = Module()
        config = self._config
        slot_bits = (config.miss_slots - 1).bit_length()
        port_bits = (config.ports - 1).bit_length()

        m.submodules.arbiter = arbiter = RoundRobinArbiter(
            WalkRequest(tag_bits=slot_bits), ports=config.ports
        )
        m.submodules.walker = walker = Walker(
            contexts=config.walker_contexts,
            tag_bits=slot_bits + port_bits,
            pa_bits=config.pa_bits,
            memory_address_bits=config.memory_address_bits,
            memory_data_bits=config.memory_data_bits,
            pipelined=config.walker_pipelined,
            counter_bits=config.counter_bits,
        )
        connect(m, flipped(self.memory), walker.memory)
        connect(m, flipped(self.walker_counters), walker.counters)
        m.d.comb += [
            walker.root.eq(self.root),
            self.walk_start.eq(walker.walk_start),
            self.walk_start_context.eq(walker.walk_start_context),
            self.walk_done.eq(walker.walk_done),
            self.walk_done_context.eq(walker.walk_done_context),
            walker.requests.valid.eq(arbiter.o.valid),
            walker.requests.payload.vpn.eq(arbiter.o.payload.item.vpn),
            walker.requests.payload.tag.eq(
                Cat(arbiter.o.payload.item.tag, arbiter.o.payload.port)
            ),
            arbiter.o.ready.eq(walker.requests.ready),
            # Every L1 has a place for each of its walks.
            walker.responses.ready.eq(1),
        ]

        invalidating = Signal()
        strobe = Signal()
        quiet = Signal(config.ports)
        m.d.comb += [
            self.invalidate.ready.eq(~invalidating),
            self.invalidate_done.eq(invalidating & ~strobe & quiet.all()),
        ]
        m.d.sync += strobe.eq(self.invalidate.valid & self.invalidate.ready)
        with m.If(self.invalidate.valid & self.invalidate.ready):
            m.d.sync += invalidating.eq(1)
        with m.Elif(self.invalidate_done):
            m.d.sync += invalidating.eq(0)

        for p in range(config.ports):
            l1 = L1Tlb(
                entries=config.l1_entries,
                latency=config.l1_latency,
                miss_slots=config.miss_slots,
                miss_merges=config.miss_merges,
                id_bits=config.id_width,
                asid_bits=config.asid_bits,
                pa_bits=config.pa_bits,
                counter_bits=config.counter_bits,
            )
            m.submodules[f"l1_{p}"] = l1
            connect(m, flipped(self.requests[p]), l1.requests)
            connect(m, flipped(self.responses[p]), l1.responses)
            connect(m, flipped(self.l1_counters[p]), l1.counters)
            connect(m, arbiter.i[p], l1.misses)
            walked = walker.responses.payload
            m.d.comb += [
                l1.invalidate.eq(strobe),
                quiet[p].eq(l1.quiet),
                l1.fills.valid.eq(
                    walker.responses.valid & (walked.tag[slot_bits:] == p)
                ),
            ]
            for name, _ in l1.fills.payload.shape():
                # Fields one by one: the tags differ in width, so that the layouts do.
                m.d.comb += getattr(l1.fills.payload, name).eq(getattr(walked, name))
        return m
