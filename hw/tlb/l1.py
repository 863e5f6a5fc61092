"""Fully associative L1 TLB of one requester port, with hit under miss."""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out, connect

from ..bus.queues import StreamQueue, TwoEntryQueue
from ..checks import check_int
from ..pagetable.nvidia_v2 import VPN_BITS, Access, PageSize, PteAperture, Status
from ..translation import (
    FLASH_PAGE_BITS,
    TranslationRequest,
    TranslationResponse,
    WalkRequest,
    WalkResponse,
)

__all__ = ["L1_COUNTERS", "L1Tlb"]

L1_COUNTERS = {
    "lookups": "Requests accepted.",
    "hits": "Requests answered from an entry (permission faults on a hit included).",
    "misses": "Requests that started a walk.",
    "merges": "Requests that joined a walk under way.",
    "faults": "Responses whose status is neither OK nor SPARSE.",
    "fills": "Entries installed.",
    "dropped_fills": "Good walk results not installed because an invalidation came after the walk began.",
    "hold_cycles": "Cycles in which a request waited for a miss slot, a merge place or the response queue.",
}
"""Counters of an L1 TLB, with what each counts."""


class L1Tlb(wiring.Component):
    """Fully associative L1 TLB for one requester.

    *Latency.* A hit is answered `latency` cycles after the request is accepted, if nothing is in its way.
    *Throughput.* One hit per cycle. A finished walk takes one cycle per waiting request (and one more with latency 2), in which
    nothing else is looked up.
    *Ordering.* Responses come out of order: hits overtake misses, and with latency 2 even requests to one page may change places.
    *One answer.* Every accepted request gets exactly one response.
    *Backpressure.* `requests.ready` comes from registers and depends on no wire of the other ports. `fills` is always ready, so that an
    L1 whose requester does not take responses never holds up the walker.
    *Misses.* Up to `miss_slots` walks are outstanding, at most one per 4 KB page and address space (a page being walked from before an
    invalidation apart). A miss that finds no slot, or no place with its walk, waits, and the requests behind it wait too.
    *Permissions* are checked here against the request's own intent, on a hit, on a fill and for each merged request.
    A fault is never cached: only walks with status OK are installed. A page size of the entry covers what the walk says; entries never
    overlap, since a fill takes the place of those it overlaps.
    *Replacement.* Free entries first, then tree pseudo-LRU.
    *Invalidation.* In the cycle after `invalidate` no entry is left, and no walk asked for up to then fills one. Their waiting requests
    are still answered with what such a walk found, and later requests never join them, so that progress does not depend on how
    often invalidations come. `quiet` says that all responses that could carry an older translation have been taken.
    *Reset* forgets everything: entries, waiting requests and responses.

    Parameters
    ----------
    entries : int
        A power of two from 4 to 64.
    latency : int
        1, or 2 (match and select in separate cycles, for FPGAs).
    miss_slots : int
        1 to 16.
    miss_merges : int
        Requests that may wait on one walk, the first one included; 1 to 16.
    id_bits, asid_bits, pa_bits, counter_bits : int
        Widths, as in `MmuConfig`.

    Members
    -------
    requests : In(stream of TranslationRequest)
    responses : Out(stream of TranslationResponse)
    misses : Out(stream of WalkRequest)
        Walks to do; the tag is the miss slot.
    fills : In(stream of WalkResponse)
        Finished walks; always ready.
    invalidate : In(1)
        Strobe: drop all entries.
    quiet : Out(1)
        No response and no walk from before the last `invalidate` is left. Valid from the cycle after the strobe.
    valid : Out(entries)
        Entries that hold a page, for probes.
    counters : Out
        `L1_COUNTERS`.
    """

    def __init__(
        self,
        *,
        entries,
        latency,
        miss_slots,
        miss_merges,
        id_bits,
        asid_bits,
        pa_bits,
        counter_bits=48,
    ):
        check_int("L1 entries", entries, 4, 64)
        if entries & (entries - 1):
            raise ValueError(f"L1 entries must be a power of two, not {entries!r}")
        check_int("L1 latency", latency, 1, 2)
        check_int("L1 miss slots", miss_slots, 1, 16)
        check_int("L1 merges per miss slot", miss_merges, 1, 16)
        check_int("Request id width", id_bits, 1, 16)
        check_int("ASID width", asid_bits, 0, 16)
        check_int("Physical address width", pa_bits, 32, 58)
        check_int("Counter width", counter_bits, 8, 64)
        self._entries = entries
        self._latency = latency
        self._miss_slots = miss_slots
        self._miss_merges = miss_merges
        self._id_bits = id_bits
        self._asid_bits = asid_bits
        self._pa_bits = pa_bits
        self._tag_bits = (miss_slots - 1).bit_length()
        super().__init__(
            {
                "requests": In(
                    stream.Signature(TranslationRequest(id_bits=id_bits, asid_bits=asid_bits))
                ),
                "responses": Out(
                    stream.Signature(TranslationResponse(id_bits=id_bits, pa_bits=pa_bits))
                ),
                "misses": Out(stream.Signature(WalkRequest(tag_bits=self._tag_bits))),
                "fills": In(
                    stream.Signature(WalkResponse(tag_bits=self._tag_bits, pa_bits=pa_bits))
                ),
                "invalidate": In(1),
                "quiet": Out(1),
                "valid": Out(entries),
                "counters": Out(
                    wiring.Signature({name: Out(unsigned(counter_bits)) for name in L1_COUNTERS})
                ),
            }
        )

    @property
    def tag_bits(self):
        """Width of the miss slot number in bits."""
        return self._tag_bits

    def elaborate(self, platform):
        """Return the hardware (Amaranth calls this)."""
        m = Module()
        n_slots, n_merges = self._miss_slots, self._miss_merges
        frame_bits = max(self._pa_bits - 12, FLASH_PAGE_BITS)
        split = self._latency == 2

        # What a translation needs from an entry or a finished walk.
        leaf_layout = data.StructLayout(
            {
                "status": Status,
                "page_size": PageSize,
                "aperture": PteAperture,
                "privilege": 1,
                "read_only": 1,
                "atomic_disable": 1,
                "frame": frame_bits,
            }
        )
        # Tag and data are signals of their own: each fits 64 bits, which simulators like.
        tag_layout = data.StructLayout(
            {"asid": self._asid_bits, "vpn": VPN_BITS, "page_size": PageSize}
        )
        data_layout = data.StructLayout(
            {
                "page_size": PageSize,
                "aperture": PteAperture,
                "privilege": 1,
                "read_only": 1,
                "atomic_disable": 1,
                "frame": self._pa_bits - 12,
            }
        )
        token_layout = data.StructLayout({"id": self._id_bits, "offset": 12, "access": Access})
        request_layout = self.requests.payload.shape()

        valid = self.valid
        tags = [
            Signal(tag_layout, name=f"tag_{i}", reset_less=True) for i in range(self._entries)
        ]
        datas = [
            Signal(data_layout, name=f"data_{i}", reset_less=True) for i in range(self._entries)
        ]
        slot_busy = Signal(n_slots)
        slot_stale = Signal(n_slots)
        slot_vpn = [
            Signal(VPN_BITS, name=f"slot_vpn_{j}", reset_less=True) for j in range(n_slots)
        ]
        slot_asid = [
            Signal(self._asid_bits, name=f"slot_asid_{j}", reset_less=True) for j in range(n_slots)
        ]
        slot_count = [Signal(range(n_merges + 1), name=f"slot_count_{j}") for j in range(n_slots)]

        m.submodules.token_mem = token_mem = memory.Memory(
            shape=token_layout, depth=n_slots << (n_merges - 1).bit_length(), init=[]
        )
        token_write = token_mem.write_port()
        token_read = token_mem.read_port(domain="comb")
        m.submodules.fill_mem = fill_mem = memory.Memory(
            shape=leaf_layout, depth=n_slots, init=[]
        )
        fill_write = fill_mem.write_port()
        fill_read = fill_mem.read_port(domain="comb")
        miss_layout = self.misses.payload.shape()
        m.submodules.miss_queue = miss_queue = StreamQueue(miss_layout, depth=n_slots)
        m.submodules.fill_queue = fill_queue = StreamQueue(
            unsigned(self._tag_bits), depth=n_slots
        )
        m.submodules.response_queue = out = TwoEntryQueue(self.responses.payload.shape())
        connect(m, wiring.flipped(self.misses), miss_queue.o)
        connect(m, wiring.flipped(self.responses), out.o)

        # Finished walks wait here, one place per slot, until their requests can be answered.
        fills = self.fills.payload
        m.d.comb += [
            fill_write.addr.eq(fills.tag),
            fill_write.en.eq(self.fills.valid),
            fill_write.data.status.eq(fills.status),
            fill_write.data.page_size.eq(fills.page_size),
            fill_write.data.aperture.eq(fills.aperture),
            fill_write.data.privilege.eq(fills.privilege),
            fill_write.data.read_only.eq(fills.read_only),
            fill_write.data.atomic_disable.eq(fills.atomic_disable),
            fill_write.data.frame.eq(fills.frame),
            fill_queue.i.payload.eq(fills.tag),
            fill_queue.i.valid.eq(self.fills.valid),
            self.fills.ready.eq(1),
        ]

        # One finished walk at a time: compare (a cycle of its own if split), install, answer its requests.
        fill_busy = Signal()
        fill_armed = Signal()  # the comparison is done
        fill_slot = Signal(self._tag_bits)
        fill_token = Signal(range(n_merges))
        fill_installed = Signal()
        fill_vpn = Signal(VPN_BITS)
        fill_asid = Signal(self._asid_bits)
        fill_count = Signal(range(n_merges + 1))
        fill_stale = Signal()
        leaf = fill_read.data
        m.d.comb += fill_read.addr.eq(fill_slot)
        for j in range(n_slots):
            with m.If(fill_slot == j):
                m.d.comb += [
                    fill_vpn.eq(slot_vpn[j]),
                    fill_asid.eq(slot_asid[j]),
                    fill_count.eq(slot_count[j]),
                    fill_stale.eq(slot_stale[j]),
                ]
        fill_act = Signal()
        m.d.comb += fill_act.eq(fill_busy & (fill_armed if split else 1))
        m.d.sync += fill_armed.eq(fill_busy)

        # Request source of the match stage: the request on hold goes before new ones.
        hold_valid = Signal()
        hold = Signal(request_layout, reset_less=True)
        s0_valid = Signal()
        s0 = Signal(request_layout)
        # The select stage has a request that was on hold before. No new one is taken then, lest they keep
        # overtaking it.
        s1_again = Signal()
        m.d.comb += [
            self.requests.ready.eq(~hold_valid & ~fill_busy & ~s1_again),
            s0_valid.eq(hold_valid & ~fill_busy | self.requests.valid & self.requests.ready),
            s0.eq(Mux(hold_valid, hold, self.requests.payload)),
        ]

        # Match stage; a fill uses the same comparators to find the entries it overlaps.
        probe_vpn = Signal(VPN_BITS)
        probe_asid = Signal(self._asid_bits)
        probe_64k = Signal()
        probe_2m = Signal()
        with m.If(fill_busy):
            m.d.comb += [
                probe_vpn.eq(fill_vpn),
                probe_asid.eq(fill_asid),
                probe_64k.eq(leaf.page_size != PageSize.SIZE_4K),
                probe_2m.eq(leaf.page_size == PageSize.SIZE_2M),
            ]
        with m.Else():
            m.d.comb += [probe_vpn.eq(s0.va[12:]), probe_asid.eq(s0.asid)]
        match_entry = Signal(self._entries)
        for i, tag in enumerate(tags):
            tag_64k = tag.page_size != PageSize.SIZE_4K
            tag_2m = tag.page_size == PageSize.SIZE_2M
            m.d.comb += match_entry[i].eq(
                valid[i]
                & (tag.asid == probe_asid)
                & (tag.vpn[9:] == probe_vpn[9:])
                & (tag_2m | probe_2m | (tag.vpn[4:9] == probe_vpn[4:9]))
                & (tag_64k | probe_64k | (tag.vpn[:4] == probe_vpn[:4]))
            )
        match_slot = Signal(n_slots)
        for j in range(n_slots):
            m.d.comb += match_slot[j].eq(
                slot_busy[j]
                & ~slot_stale[j]
                & (slot_vpn[j] == s0.va[12:])
                & (slot_asid[j] == s0.asid)
            )

        # Select stage. What changed since the match makes the request match again.
        changed_entries = Signal()
        changed_slots = Signal()
        s1_valid = Signal()
        s1 = Signal(request_layout)
        s1_entry = Signal(self._entries)
        s1_slot = Signal(n_slots)
        s1_old_entries = Signal()
        s1_old_slots = Signal()
        s1_done = Signal()
        s1_act = Signal()
        if split:
            s1_full = Signal()
            s1_request = Signal(request_layout, reset_less=True)
            m.d.comb += [
                s1_valid.eq(s1_full),
                s1.eq(s1_request),
                s1_act.eq(s1_full & ~fill_busy),
            ]
            with m.If(~fill_busy):
                m.d.sync += [
                    s1_full.eq(s0_valid),
                    s1_request.eq(s0),
                    s1_again.eq(hold_valid),
                    s1_entry.eq(match_entry),
                    s1_slot.eq(match_slot),
                    s1_old_entries.eq(changed_entries),
                    s1_old_slots.eq(changed_slots),
                ]
            with m.Else():
                m.d.sync += [
                    s1_old_entries.eq(s1_old_entries | changed_entries),
                    s1_old_slots.eq(s1_old_slots | changed_slots),
                ]
            with m.If(~fill_busy):
                m.d.sync += hold_valid.eq(s1_act & ~s1_done)
                m.d.sync += hold.eq(s1)
            fill_match = Signal(self._entries)
            m.d.sync += fill_match.eq(match_entry)
        else:
            m.d.comb += [
                s1_valid.eq(s0_valid),
                s1.eq(s0),
                s1_entry.eq(match_entry),
                s1_slot.eq(match_slot),
                s1_act.eq(s0_valid),
            ]
            with m.If(s1_act):
                m.d.sync += [hold_valid.eq(~s1_done), hold.eq(s1)]
            fill_match = match_entry

        hit = Signal()
        join = Signal()
        allocate = Signal()
        free_slot = Signal(n_slots)
        merge_full = Signal()
        m.d.comb += free_slot.eq(~slot_busy & (slot_busy + 1)[:n_slots])
        for j in range(n_slots):
            with m.If(s1_slot[j]):
                m.d.comb += merge_full.eq(slot_count[j] == n_merges)
        may_miss = Signal()
        m.d.comb += [
            hit.eq(s1_act & ~s1_old_entries & s1_entry.any() & out.i.ready),
            may_miss.eq(s1_act & ~s1_old_entries & ~s1_old_slots & ~s1_entry.any()),
            join.eq(may_miss & s1_slot.any() & ~merge_full),
            allocate.eq(may_miss & ~s1_slot.any() & ~slot_busy.all()),
            s1_done.eq(hit | join | allocate),
        ]

        # Miss slots.
        retire = Signal()
        for j in range(n_slots):
            row = Const(j, self._tag_bits)
            with m.If(allocate & free_slot[j]):
                m.d.sync += [
                    slot_busy[j].eq(1),
                    slot_stale[j].eq(0),
                    slot_vpn[j].eq(s1.va[12:]),
                    slot_asid[j].eq(s1.asid),
                    slot_count[j].eq(1),
                ]
                m.d.comb += [
                    miss_queue.i.payload.tag.eq(row),
                    token_write.addr.eq(j << (n_merges - 1).bit_length()),
                ]
            with m.If(join & s1_slot[j]):
                m.d.sync += slot_count[j].eq(slot_count[j] + 1)
                m.d.comb += token_write.addr.eq(
                    (j << (n_merges - 1).bit_length()) | slot_count[j]
                )
            with m.If(retire & (fill_slot == j)):
                m.d.sync += slot_busy[j].eq(0)
            with m.If(self.invalidate & slot_busy[j]):
                m.d.sync += slot_stale[j].eq(1)
        m.d.comb += [
            miss_queue.i.payload.vpn.eq(s1.va[12:]),
            miss_queue.i.valid.eq(allocate),
            token_write.en.eq(allocate | join),
            token_write.data.id.eq(s1.id),
            token_write.data.offset.eq(s1.va[:12]),
            token_write.data.access.eq(s1.access),
        ]

        # Responses: a hit's, or that of a request whose walk has ended.
        # At most one entry matches, so that an OR selects.
        hit_entry = Signal(data_layout)
        selected = Const(0, data_layout.size)
        for i, entry in enumerate(datas):
            selected = selected | Mux(s1_entry[i], entry.as_value(), 0)
        m.d.comb += hit_entry.as_value().eq(selected)
        answer = Signal(leaf_layout)
        answer_id = Signal(self._id_bits)
        answer_va = Signal(21)
        answer_access = Signal(Access)
        drain = Signal()
        token = token_read.data
        m.d.comb += [
            drain.eq(fill_act & out.i.ready),
            token_read.addr.eq(
                Cat(fill_token[: (n_merges - 1).bit_length()], fill_slot)
                if n_merges > 1
                else fill_slot
            ),
        ]
        with m.If(fill_busy):
            m.d.comb += [
                answer.eq(leaf),
                answer_id.eq(token.id),
                answer_va.eq(Cat(token.offset, fill_vpn[:9])),
                answer_access.eq(token.access),
            ]
        with m.Else():
            m.d.comb += [
                answer.status.eq(Status.OK),
                answer.page_size.eq(hit_entry.page_size),
                answer.aperture.eq(hit_entry.aperture),
                answer.privilege.eq(hit_entry.privilege),
                answer.read_only.eq(hit_entry.read_only),
                answer.atomic_disable.eq(hit_entry.atomic_disable),
                answer.frame.eq(hit_entry.frame),
                answer_id.eq(s1.id),
                answer_va.eq(s1.va[:21]),
                answer_access.eq(s1.access),
            ]
        response = out.i.payload
        is_ok = answer.status == Status.OK
        writes = (answer_access == Access.WRITE) | (answer_access == Access.ATOMIC)
        m.d.comb += [
            out.i.valid.eq(hit | drain),
            response.id.eq(answer_id),
            response.hit.eq(~fill_busy),
            response.status.eq(answer.status),
            response.page_size.eq(answer.page_size),
        ]
        with m.If(is_ok & answer.privilege):
            m.d.comb += response.status.eq(Status.PRIV)
        with m.Elif(is_ok & answer.read_only & writes):
            m.d.comb += response.status.eq(Status.RO)
        with m.Elif(is_ok & answer.atomic_disable & (answer_access == Access.ATOMIC)):
            m.d.comb += response.status.eq(Status.ATOMIC)
        with m.Elif(is_ok):
            is_64k = answer.page_size != PageSize.SIZE_4K
            is_2m = answer.page_size == PageSize.SIZE_2M
            m.d.comb += [
                response.aperture.eq(answer.aperture),
                response.pa.eq(
                    Cat(
                        answer_va[:12],
                        Mux(is_64k, answer_va[12:16], answer.frame[:4]),
                        Mux(is_2m, answer_va[16:21], answer.frame[4:9]),
                        answer.frame[9 : self._pa_bits - 12],
                    )
                ),
            ]
        with m.Else():
            # The walker gives 0 unless the word is a location.
            m.d.comb += response.flash_page.eq(answer.frame)

        # Fills.
        last_token = Signal()
        install = Signal()
        good = Signal()
        m.d.comb += [
            last_token.eq(fill_token + 1 == fill_count),
            retire.eq(drain & last_token),
            good.eq(leaf.status == Status.OK),
            install.eq(fill_act & ~fill_installed & good & ~fill_stale),
        ]
        m.d.comb += fill_queue.o.ready.eq(~fill_busy | retire)
        with m.If(fill_queue.o.ready):
            m.d.sync += [
                fill_busy.eq(fill_queue.o.valid),
                fill_slot.eq(fill_queue.o.payload),
                fill_token.eq(0),
                fill_installed.eq(0),
                fill_armed.eq(0),
            ]
        with m.Else():
            m.d.sync += fill_installed.eq(fill_act)
            with m.If(drain):
                m.d.sync += fill_token.eq(fill_token + 1)

        # Victim: an entry that the new one overlaps, else a free one, else the pseudo-LRU one.
        plru = Signal(self._entries)  # node k has children 2k and 2k+1; node 0 is unused
        plru_way = Signal(self._entries)
        touch = Signal(self._entries)
        reached = {1: Const(1)}
        for k in range(1, self._entries):
            reached[2 * k] = reached[k] & ~plru[k]
            reached[2 * k + 1] = reached[k] & plru[k]
        m.d.comb += plru_way.eq(Cat(reached[self._entries + i] for i in range(self._entries)))
        for k in range(1, self._entries):
            # Point away from the entry touched.
            depth = k.bit_length() - 1
            span = self._entries >> depth
            low = (k - (1 << depth)) * span
            with m.If(touch[low : low + span // 2].any()):
                m.d.sync += plru[k].eq(1)
            with m.If(touch[low + span // 2 : low + span].any()):
                m.d.sync += plru[k].eq(0)
        free_way = Signal(self._entries)
        victim = Signal(self._entries)
        overlapped = Signal(self._entries)
        m.d.comb += [
            free_way.eq(~valid & (valid + 1)[: self._entries]),
            overlapped.eq(fill_match & valid),
        ]
        with m.If(overlapped.any()):
            m.d.comb += victim.eq(overlapped & (~overlapped + 1)[: self._entries])
        with m.Elif(~valid.all()):
            m.d.comb += victim.eq(free_way)
        with m.Else():
            m.d.comb += victim.eq(plru_way)
        with m.If(install):
            m.d.sync += valid.eq((valid & ~overlapped) | victim)
            m.d.comb += touch.eq(victim)
        with m.Elif(hit):
            m.d.comb += touch.eq(s1_entry)
        new_tag = Signal(tag_layout)
        new_entry = Signal(data_layout)
        m.d.comb += [
            new_tag.asid.eq(fill_asid),
            new_tag.vpn.eq(fill_vpn),
            new_tag.page_size.eq(leaf.page_size),
            new_entry.page_size.eq(leaf.page_size),
            new_entry.aperture.eq(leaf.aperture),
            new_entry.privilege.eq(leaf.privilege),
            new_entry.read_only.eq(leaf.read_only),
            new_entry.atomic_disable.eq(leaf.atomic_disable),
            new_entry.frame.eq(leaf.frame),
        ]
        for i in range(self._entries):
            with m.If(install & victim[i]):
                m.d.sync += [tags[i].eq(new_tag), datas[i].eq(new_entry)]
        # Last, so that it outranks a fill in the same cycle.
        with m.If(self.invalidate):
            m.d.sync += valid.eq(0)

        m.d.comb += [
            changed_entries.eq(install | self.invalidate),
            changed_slots.eq(allocate | retire | self.invalidate),
        ]

        # Responses in the queue that an invalidation found there, or that a walk from before it has put there since.
        old_responses = Signal(2)
        taken = Signal()
        m.d.comb += taken.eq(self.responses.valid & self.responses.ready)
        with m.If(self.invalidate | (drain & fill_stale)):
            m.d.sync += old_responses.eq(out.level + out.i.valid - taken)
        with m.Elif(taken & (old_responses != 0)):
            m.d.sync += old_responses.eq(old_responses - 1)
        m.d.comb += self.quiet.eq((old_responses == 0) & ~(slot_busy & slot_stale).any())

        if platform == "formal":
            # Two entries never cover one page. With it, at most one matches a request; both are inductive.
            for i in range(self._entries):
                for k in range(i):
                    a, b = tags[i], tags[k]
                    large = (a.page_size != PageSize.SIZE_4K) | (b.page_size != PageSize.SIZE_4K)
                    huge = (a.page_size == PageSize.SIZE_2M) | (b.page_size == PageSize.SIZE_2M)
                    m.d.comb += Assert(
                        ~(
                            valid[i]
                            & valid[k]
                            & (a.asid == b.asid)
                            & (a.vpn[9:] == b.vpn[9:])
                            & (huge | (a.vpn[4:9] == b.vpn[4:9]))
                            & (large | (a.vpn[:4] == b.vpn[:4]))
                        )
                    )
            with m.If(~fill_busy):
                m.d.comb += Assert((match_entry & (match_entry - 1)) == 0)

        events = {
            "lookups": self.requests.valid & self.requests.ready,
            "hits": hit,
            "misses": allocate,
            "merges": join,
            "faults": out.i.valid
            & out.i.ready
            & (response.status != Status.OK)
            & (response.status != Status.SPARSE),
            "fills": install & ~self.invalidate,
            "dropped_fills": retire & good & fill_stale,
            "hold_cycles": hold_valid | s1_again,
        }
        for name in L1_COUNTERS:
            counter = getattr(self.counters, name)
            m.d.sync += counter.eq(counter + events[name])
        return m
