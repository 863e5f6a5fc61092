"""Multi-context page-table walker over one AXI4 read port."""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out, connect

from ..bus.axi4 import Axi4Signature, Burst, Feature
from ..bus.queues import StreamQueue, TwoEntryQueue
from ..checks import check_int
from ..pagetable.nvidia_v2 import (
    LEVELS,
    LOCATION,
    LOCATION_2M,
    PDE,
    PDE0,
    PTE,
    VPN_BITS,
    Level,
    PageSize,
    PdeAperture,
    PteAperture,
    Status,
)
from ..translation import FLASH_PAGE_BITS, RootLayout, WalkRequest, WalkResponse

__all__ = ["WALKER_COUNTERS", "Walker"]

WALKER_COUNTERS = {
    "walks": "Walks begun that took a context.",
    "early_faults": "Requests answered without a table read (no root table, VA beyond the limit).",
    "reads": "Table reads issued.",
    "faults": "Walks with a context that ended with neither OK nor SPARSE.",
    "bus_errors": "Table reads answered with SLVERR or DECERR.",
    "busy_cycles": "Cycles with at least one walk in flight.",
    "context_cycles": "Sum over cycles of the walks in flight.",
    "full_cycles": "Cycles in which a request waited for a free context.",
}
"""Counters of the walker, with what each counts."""

_TABLE_SHIFT = 8  # tables are aligned to 256 bytes at least (the 64 KB tables)
_TABLE_BITS = 58 - _TABLE_SHIFT


class Walker(wiring.Component):
    """Walk NVIDIA v2 page tables with up to `contexts` walks in flight.

    *Memory.* Each table read is one AXI4 beat of 16 bytes at an address aligned to 16 (a dual PDE0 is read whole). The AXI id is the context, so
    that reads may complete in any order. ``ar.user`` is 1 for tables in system memory and 0 for video memory. A read that is answered with
    SLVERR or DECERR ends its walk with BUS_ERROR.
    *Throughput.* One table word per cycle. A walk that reads L tables occupies its context L x (memory latency + 1) + 1 cycles
    (+ L more if `pipelined`), with memory latency counted from the cycle in which AR is taken to the cycle in which R is.
    *Ordering.* Walks complete out of order. *One answer.* Every accepted request gets exactly one response, early
    faults and bus errors included.
    *Backpressure.* `requests.ready` comes from a register: one request is held while it waits for a context. If responses are not taken, R is not
    taken either; AR never waits for R.
    *Consistency.* Each walk uses the root as it is when the walk begins. No table word is kept when a walk has ended.
    *Reset* forgets all walks. Answers to reads that were in flight must not arrive after it.

    Parameters
    ----------
    contexts : int
        1 to 64.
    tag_bits : int
        Width of the requester's tag, 0 to 16.
    pa_bits : int
        Width of physical addresses of pages; leaves beyond it end with REGION.
    memory_address_bits : int
        Width of addresses on the memory port; tables beyond it end with REGION.
    memory_data_bits : int
        128, 256, 512 or 1024.
    pipelined : bool
        Register table words before they are decoded.
    counter_bits : int
        Width of counters.

    Members
    -------
    requests : In(stream of WalkRequest)
    responses : Out(stream of WalkResponse)
    memory : Out(Axi4Signature)
    root : In(RootLayout)
    walk_start, walk_start_context : Out
        Strobe and context number of a walk that takes its context in this cycle.
    walk_done, walk_done_context : Out
        Strobe and context number of a walk that leaves its context in this cycle.
    active : Out(range(contexts + 1))
        Walks in flight.
    counters : Out
        `WALKER_COUNTERS`.
    """

    def __init__(
        self,
        *,
        contexts,
        tag_bits,
        pa_bits,
        memory_address_bits,
        memory_data_bits=128,
        pipelined=False,
        counter_bits=48,
    ):
        check_int("Walker contexts", contexts, 1, 64)
        check_int("Walk tag width", tag_bits, 0, 16)
        check_int("Physical address width", pa_bits, 32, 58)
        check_int("Memory address width", memory_address_bits, 32, 58)
        check_int("Counter width", counter_bits, 8, 64)
        if memory_data_bits not in (128, 256, 512, 1024):
            raise ValueError(
                f"Memory data width must be 128, 256, 512 or 1024 bits, not {memory_data_bits!r}"
            )
        self._contexts = contexts
        self._id_bits = (contexts - 1).bit_length()
        self._tag_bits = tag_bits
        self._pa_bits = pa_bits
        self._address_bits = memory_address_bits
        self._data_bits = memory_data_bits
        self._pipelined = bool(pipelined)
        super().__init__(
            {
                "requests": In(stream.Signature(WalkRequest(tag_bits=tag_bits))),
                "responses": Out(
                    stream.Signature(WalkResponse(tag_bits=tag_bits, pa_bits=pa_bits))
                ),
                "memory": Out(
                    Axi4Signature(
                        address_bits=memory_address_bits,
                        data_bits=memory_data_bits,
                        id_bits=self._id_bits,
                        user_bits=1,
                        features={Feature.READ},
                    )
                ),
                "root": In(RootLayout(memory_address_bits=memory_address_bits)),
                "walk_start": Out(1),
                "walk_start_context": Out(self._id_bits),
                "walk_done": Out(1),
                "walk_done_context": Out(self._id_bits),
                "active": Out(range(contexts + 1)),
                "counters": Out(
                    wiring.Signature(
                        {name: Out(unsigned(counter_bits)) for name in WALKER_COUNTERS}
                    )
                ),
            }
        )

    def elaborate(self, platform):
        """Return the hardware (Amaranth calls this)."""
        m = Module()
        contexts = self._contexts
        id_shape = unsigned(self._id_bits)
        context_layout = data.StructLayout({"tag": self._tag_bits, "vpn": VPN_BITS})
        fallback_layout = data.StructLayout({"aperture": PdeAperture, "table": _TABLE_BITS})
        read_layout = data.StructLayout(
            {
                "id": id_shape,
                "level": Level,
                "system": 1,
                "addr": self._address_bits - 4,
            }
        )

        m.submodules.context_mem = context_mem = memory.Memory(
            shape=context_layout, depth=contexts, init=[]
        )
        context_write, context_read = context_mem.write_port(), context_mem.read_port(domain="comb")
        m.submodules.level_mem = level_mem = memory.Memory(shape=Level, depth=contexts, init=[])
        level_write, level_read = level_mem.write_port(), level_mem.read_port(domain="comb")
        # 4 KB table of a dual PDE0, for walks that read the 64 KB table first.
        m.submodules.fallback_mem = fallback_mem = memory.Memory(
            shape=fallback_layout, depth=contexts, init=[]
        )
        fallback_write = fallback_mem.write_port()
        fallback_read = fallback_mem.read_port(domain="comb")

        m.submodules.free_queue = free_queue = StreamQueue(id_shape, depth=contexts)
        m.submodules.read_queue = read_queue = StreamQueue(read_layout, depth=contexts)
        m.submodules.response_queue = out = TwoEntryQueue(self.responses.payload.shape())
        connect(m, wiring.flipped(self.responses), out.o)

        # Table word under decode.
        beat = Signal(self.memory.r.payload.shape(), reset_less=True)
        beat_valid = Signal()
        decode = Signal()  # the word is used up in this cycle
        if self._pipelined:
            m.d.comb += self.memory.r.ready.eq(~beat_valid | decode)
            with m.If(self.memory.r.ready):
                m.d.sync += [beat_valid.eq(self.memory.r.valid), beat.eq(self.memory.r.payload)]
        else:
            beat = self.memory.r.payload
            m.d.comb += [beat_valid.eq(self.memory.r.valid), self.memory.r.ready.eq(out.i.ready)]
        m.d.comb += decode.eq(beat_valid & out.i.ready)
        m.d.comb += [
            context_read.addr.eq(beat.id),
            level_read.addr.eq(beat.id),
            fallback_read.addr.eq(beat.id),
        ]
        context = context_read.data
        level = Signal(Level)
        m.d.comb += level.eq(level_read.data)

        # Bytes of the entry: lane within the bus, then half within the 16 bytes.
        offset = Signal(12)
        with m.Switch(level):
            for lv, (lsb, width, size_log2) in LEVELS.items():
                with m.Case(lv):
                    index = context.vpn[lsb - 12 : lsb - 12 + width]
                    m.d.comb += offset.eq(Cat(Const(0, size_log2), index))
        lanes = self._data_bits // 128
        line = Signal(128)
        m.d.comb += line.eq(
            beat.data.word_select(offset[4 : 4 + (lanes - 1).bit_length()], 128)
            if lanes > 1
            else beat.data
        )
        word = Signal(64)
        m.d.comb += word.eq(Mux(offset[3], line[64:], line[:64]))

        pde = data.View(PDE.layout, word)
        pde0 = data.View(PDE0.layout, line)
        pte = data.View(PTE.layout, word)
        location = data.View(LOCATION.layout, word)
        location_2m = data.View(LOCATION_2M.layout, word)
        at_pde0 = level == Level.PDE0
        at_64k = level == Level.PT64K
        at_directory = (level == Level.PDE3) | (level == Level.PDE2) | (level == Level.PDE1)

        # Leaf: what the walk ends with if the word is taken as a PTE.
        leaf_size = Signal(PageSize)
        leaf_status = Signal(Status)
        leaf_frame = Signal(46)
        misaligned = Signal()
        with m.If(at_pde0):
            m.d.comb += [leaf_size.eq(PageSize.SIZE_2M), misaligned.eq(leaf_frame[:9].any())]
        with m.Elif(at_64k):
            m.d.comb += [leaf_size.eq(PageSize.SIZE_64K), misaligned.eq(leaf_frame[:4].any())]
        with m.Else():
            m.d.comb += leaf_size.eq(PageSize.SIZE_4K)
        system_leaf = (pte.aperture == PteAperture.SYSTEM_COHERENT) | (
            pte.aperture == PteAperture.SYSTEM_NONCOHERENT
        )
        m.d.comb += leaf_frame.eq(Mux(system_leaf, pte.address_sys, pte.address_vid))
        with m.If(misaligned):
            m.d.comb += leaf_status.eq(Status.PDE_SIZE)
        with m.Elif(leaf_frame[self._pa_bits - 12 :].any()):
            m.d.comb += leaf_status.eq(Status.REGION)
        with m.Elif(pte.aperture == PteAperture.PEER):
            m.d.comb += leaf_status.eq(Status.UNSUPPORTED_APERTURE)
        with m.Elif(pte.encrypted):
            m.d.comb += leaf_status.eq(Status.UNSUPPORTED_KIND)
        with m.Else():
            m.d.comb += leaf_status.eq(Status.OK)

        # Next table, in units of 256 bytes.
        descend = Signal()
        next_level = Signal(Level)
        next_aperture = Signal(PdeAperture)
        next_table = Signal(_TABLE_BITS)
        status = Signal(Status)

        small_table = Signal(_TABLE_BITS)
        big_table = Signal(_TABLE_BITS)
        m.d.comb += small_table.eq(
            Cat(
                Const(0, 4),
                Mux(
                    pde0.aperture_small == PdeAperture.VIDEO,
                    pde0.address_small_vid,
                    pde0.address_small_sys,
                ),
            )
        )
        m.d.comb += big_table.eq(
            Mux(pde0.aperture_big == PdeAperture.VIDEO, pde0.address_big_vid, pde0.address_big_sys)
        )

        with m.If(at_directory):
            m.d.comb += [
                next_aperture.eq(pde.aperture),
                next_table.eq(
                    Cat(
                        Const(0, 4),
                        Mux(pde.aperture == PdeAperture.VIDEO, pde.address_vid, pde.address_sys),
                    )
                ),
                next_level.eq(
                    Mux(
                        level == Level.PDE3,
                        Level.PDE2,
                        Mux(level == Level.PDE2, Level.PDE1, Level.PDE0),
                    )
                ),
            ]
            with m.If(pde.is_pte):
                m.d.comb += status.eq(Status.PDE_SIZE)
            with m.Elif(pde.aperture != PdeAperture.INVALID):
                m.d.comb += descend.eq(1)
            with m.Elif(pde.vol):
                m.d.comb += status.eq(Status.SPARSE)
            with m.Else():
                m.d.comb += status.eq(Status.PDE)
        with m.Elif(at_pde0):
            m.d.comb += fallback_write.data.eq(Cat(pde0.aperture_small, small_table))
            with m.If(pde0.is_pte):
                m.d.comb += status.eq(leaf_status)
            with m.Elif(pde0.aperture_big != PdeAperture.INVALID):
                m.d.comb += [
                    descend.eq(1),
                    next_level.eq(Level.PT64K),
                    next_aperture.eq(pde0.aperture_big),
                    next_table.eq(big_table),
                ]
            with m.Elif(pde0.aperture_small != PdeAperture.INVALID):
                m.d.comb += [
                    descend.eq(1),
                    next_level.eq(Level.PT4K),
                    next_aperture.eq(pde0.aperture_small),
                    next_table.eq(small_table),
                ]
            with m.Elif(pde0.vol_big):
                m.d.comb += status.eq(Status.SPARSE)
            with m.Elif(location_2m.mark_2m & (location_2m.zero == 0)):
                m.d.comb += status.eq(Cat(location_2m.state, Const(Status.NOT_RESIDENT >> 2, 3)))
            with m.Else():
                m.d.comb += status.eq(Status.PDE)
        with m.Else():
            malformed = location.mark_2m | (location.zero != 0)
            with m.If(pte.valid):
                m.d.comb += status.eq(leaf_status)
            with m.Elif(pte.privilege):
                m.d.comb += status.eq(Status.PTE)
            with m.Elif(pte.vol):
                m.d.comb += status.eq(Status.SPARSE)
            with m.Elif(malformed):
                m.d.comb += status.eq(Status.PTE)
            with m.Elif(
                at_64k
                & (location.state == 0)
                & (fallback_read.data.aperture != PdeAperture.INVALID)
            ):
                m.d.comb += [
                    descend.eq(1),
                    next_level.eq(Level.PT4K_AFTER_64K),
                    next_aperture.eq(fallback_read.data.aperture),
                    next_table.eq(fallback_read.data.table),
                ]
            with m.Else():
                m.d.comb += status.eq(Cat(location.state, Const(Status.NOT_RESIDENT >> 2, 3)))

        # A bus error outranks everything; then a table out of reach.
        bus_error = Signal()
        end = Signal()
        end_status = Signal(Status)
        m.d.comb += bus_error.eq(beat.resp[1])
        out_of_reach = next_table[self._address_bits - _TABLE_SHIFT :].any()
        with m.If(bus_error):
            m.d.comb += [end.eq(1), end_status.eq(Status.BUS_ERROR)]
        with m.Elif(descend):
            m.d.comb += [end.eq(out_of_reach), end_status.eq(Status.REGION)]
        with m.Else():
            m.d.comb += [end.eq(1), end_status.eq(status)]

        next_offset = Signal(12)
        with m.Switch(next_level):
            for lv, (lsb, width, size_log2) in LEVELS.items():
                with m.Case(lv):
                    index = context.vpn[lsb - 12 : lsb - 12 + width]
                    m.d.comb += next_offset.eq(Cat(Const(0, size_log2), index))

        m.d.comb += [
            fallback_write.addr.eq(beat.id),
            fallback_write.en.eq(decode & at_pde0),
        ]

        # One request held until it gets a context.
        new_valid = Signal()
        new = Signal(self.requests.payload.shape(), reset_less=True)
        new_taken = Signal()
        m.d.comb += self.requests.ready.eq(~new_valid)
        with m.If(~new_valid):
            m.d.sync += [new_valid.eq(self.requests.valid), new.eq(self.requests.payload)]
        with m.Elif(new_taken):
            m.d.sync += new_valid.eq(0)

        primed = Signal(range(contexts + 1))  # contexts never used so far come from this count
        all_primed = primed == contexts
        free_id = Signal(id_shape)
        free_valid = Signal()
        m.d.comb += [
            free_id.eq(Mux(all_primed, free_queue.o.payload, primed)),
            free_valid.eq(~all_primed | free_queue.o.valid),
        ]
        unbound = self.root.aperture == PdeAperture.INVALID
        beyond = (self.root.va_limit != 0) & (new.vpn >= self.root.va_limit)
        early = unbound | beyond
        start = Signal()
        early_answer = Signal()
        m.d.comb += [
            start.eq(new_valid & ~early & free_valid & ~(decode & ~end)),
            early_answer.eq(new_valid & early & out.i.ready & ~(decode & end)),
            new_taken.eq(start | early_answer),
            free_queue.o.ready.eq(start & all_primed),
        ]
        with m.If(start & ~all_primed):
            m.d.sync += primed.eq(primed + 1)
        m.d.comb += [
            context_write.addr.eq(free_id),
            context_write.en.eq(start),
            context_write.data.tag.eq(new.tag),
            context_write.data.vpn.eq(new.vpn),
        ]

        # Reads to issue: the next table of a walk goes before the first of a new one.
        push = Signal()
        item = Signal(read_layout)
        m.d.comb += push.eq(start | (decode & ~end))
        with m.If(decode & ~end):
            m.d.comb += [
                item.id.eq(beat.id),
                item.level.eq(next_level),
                item.system.eq(next_aperture != PdeAperture.VIDEO),
                item.addr.eq(
                    Cat(next_offset[4:8], next_offset[8:] | next_table[:4], next_table[4:])
                ),
            ]
        with m.Else():
            lsb, width, _ = LEVELS[Level.PDE3]
            m.d.comb += [
                item.id.eq(free_id),
                item.level.eq(Level.PDE3),
                item.system.eq(self.root.aperture != PdeAperture.VIDEO),
                item.addr.eq(
                    Cat(new.vpn[lsb - 11 : lsb - 12 + width], Const(0, 7), self.root.address[12:])
                ),
            ]
        ar = self.memory.ar
        ar_item = Signal(read_layout, reset_less=True)
        load = Signal()
        loaded = Signal(read_layout)
        m.d.comb += [
            load.eq(~ar.valid | ar.ready),
            loaded.eq(Mux(read_queue.o.valid, read_queue.o.payload, item)),
            read_queue.o.ready.eq(load),
            read_queue.i.payload.eq(item),
            read_queue.i.valid.eq(push & ~(load & ~read_queue.o.valid)),
            level_write.addr.eq(loaded.id),
            level_write.data.eq(loaded.level),
            level_write.en.eq(load & (read_queue.o.valid | push)),
            ar.payload.id.eq(ar_item.id),
            ar.payload.addr.eq(Cat(Const(0, 4), ar_item.addr)),
            ar.payload.len.eq(0),
            ar.payload.size.eq(4),
            ar.payload.burst.eq(Burst.INCR),
            ar.payload.user.eq(ar_item.system),
        ]
        with m.If(load):
            m.d.sync += [ar.valid.eq(read_queue.o.valid | push), ar_item.eq(loaded)]

        # Answers, and contexts that become free.
        done = Signal()
        response = out.i.payload
        m.d.comb += [
            done.eq(decode & end),
            out.i.valid.eq(done | early_answer),
            free_queue.i.payload.eq(beat.id),
            free_queue.i.valid.eq(done),
        ]
        with m.If(done):
            is_ok = end_status == Status.OK
            is_location = end_status[3:] == Const(Status.NOT_RESIDENT >> 3, 2)
            reads = Signal(3)
            with m.Switch(level):
                for lv in Level:
                    with m.Case(lv):
                        m.d.comb += reads.eq(lv.reads)
            m.d.comb += [
                response.tag.eq(context.tag),
                response.status.eq(end_status),
                response.levels.eq(reads),
                response.word.eq(Mux(bus_error, 0, word)),
            ]
            with m.If(is_ok):
                m.d.comb += [
                    response.aperture.eq(pte.aperture),
                    response.volatile.eq(pte.vol),
                    response.privilege.eq(pte.privilege),
                    response.read_only.eq(pte.read_only),
                    response.atomic_disable.eq(pte.atomic_disable),
                    response.frame.eq(leaf_frame[: self._pa_bits - 12]),
                ]
            with m.If(is_location & (end_status != Status.NOT_RESIDENT)):
                m.d.comb += response.frame.eq(location.page[:FLASH_PAGE_BITS])
            with m.If(is_ok | is_location):
                m.d.comb += response.page_size.eq(leaf_size)
        with m.Else():
            m.d.comb += [
                response.tag.eq(new.tag),
                response.status.eq(Mux(unbound, Status.UNBOUND_INST_BLOCK, Status.VA_LIMIT)),
            ]

        m.d.comb += [
            self.walk_start.eq(start),
            self.walk_start_context.eq(free_id),
            self.walk_done.eq(done),
            self.walk_done_context.eq(beat.id),
        ]
        m.d.sync += self.active.eq(self.active + start - done)

        events = {
            "walks": start,
            "early_faults": early_answer,
            "reads": ar.valid & ar.ready,
            "faults": done & (end_status != Status.OK) & (end_status != Status.SPARSE),
            "bus_errors": done & bus_error,
            "busy_cycles": self.active != 0,
            "context_cycles": self.active,
            "full_cycles": new_valid & ~early & ~free_valid,
        }
        for name in WALKER_COUNTERS:
            counter = getattr(self.counters, name)
            m.d.sync += counter.eq(counter + events[name])
        return m


