# amaranth: UnusedElaboratable=no
import pytest

from pagetide.hw.pagetable.nvidia_v2 import Access, PageSize, PteAperture, Status
from pagetide.hw.tlb.l1 import L1Tlb

BASE = 0x1_2345_6780_0000
OK = {"status": Status.OK, "page_size": PageSize.SIZE_4K, "frame": 0x100}


def make(**kwargs):
    parameters = {
        "entries": 4,
        "latency": 1,
        "miss_slots": 2,
        "miss_merges": 2,
        "id_bits": 6,
        "asid_bits": 2,
        "pa_bits": 47,
        "counter_bits": 32,
    }
    return L1Tlb(**{**parameters, **kwargs})


class Bench:
    """Drives one L1: collects misses and responses with their cycles; the script sends requests and fills."""

    def __init__(self, pysim, dut):
        self.pysim, self.dut = pysim, dut
        self.cycle = 0
        self.misses = []  # (cycle, slot, vpn)
        self.responses = {}  # id -> (cycle, response)
        self.order = []
        self.accepted = {}  # id -> cycle
        self.take = True

    async def monitor(self, ctx):
        dut = self.dut
        ctx.set(dut.misses.ready, 1)
        while True:
            ctx.set(dut.responses.ready, self.take)
            sample = await ctx.tick().sample(
                dut.requests.valid,
                dut.requests.ready,
                dut.requests.payload.id,
                dut.misses.valid,
                dut.misses.payload,
                dut.responses.valid,
                dut.responses.ready,
                dut.responses.payload,
                dut.fills.ready,
            )
            _, _, rv, rr, ident, mv, miss, v, r, response, fills_ready = sample
            assert fills_ready
            if rv and rr:
                self.accepted[ident] = self.cycle
            if mv:
                self.misses.append((self.cycle, miss.tag, miss.vpn))
            if v and r:
                assert response.id not in self.responses, "two answers for one request"
                self.responses[response.id] = (self.cycle, response)
                self.order.append(response.id)
            self.cycle += 1

    async def request(self, ctx, ident, va, access=Access.READ, asid=0):
        await self.pysim.put(
            ctx, self.dut.requests, {"id": ident, "va": va, "access": access, "asid": asid}
        )

    async def miss(self, ctx, number):
        """Wait for the miss with that number (from 0) and return its slot."""
        for _ in range(100):
            if len(self.misses) > number:
                return self.misses[number][1]
            await ctx.tick()
        raise AssertionError(f"miss {number} did not come")

    async def fill(self, ctx, slot, **fields):
        await self.pysim.put(ctx, self.dut.fills, {"tag": slot, **OK, **fields})
        for name in ("privilege", "read_only", "atomic_disable", "frame", "aperture"):
            ctx.set(getattr(self.dut.fills.payload, name), 0)

    async def answer(self, ctx, ident):
        """Wait for the response to a request."""
        for _ in range(100):
            if ident in self.responses:
                return self.responses[ident][1]
            await ctx.tick()
        raise AssertionError(f"request {ident} was not answered")

    async def install(self, ctx, ident, va, asid=0, **fields):
        """Miss and fill, so that the page is in the TLB."""
        number = len(self.misses)
        await self.request(ctx, ident, va, asid=asid)
        await self.fill(ctx, await self.miss(ctx, number), **fields)
        return await self.answer(ctx, ident)

    async def invalidate(self, ctx):
        ctx.set(self.dut.invalidate, 1)
        await ctx.tick()
        ctx.set(self.dut.invalidate, 0)

    def counter(self, ctx, name):
        return ctx.get(getattr(self.dut.counters, name))

    def run(self, script):
        async def main(ctx):
            await script(self, ctx)
            await self.pysim.wait(ctx, 10)

        self.pysim.simulate(
            self.dut,
            main,
            background=[
                self.monitor,
                self.pysim.rules(self.dut.responses),
                self.pysim.rules(self.dut.misses),
            ],
        )
        return self


@pytest.fixture(params=[1, 2], ids=["latency1", "latency2"])
def latency(request):
    return request.param


def run(pysim, script, **parameters):
    return Bench(pysim, make(**parameters)).run(script)


def test_hit_latency_and_one_hit_per_cycle(pysim, latency):
    hits = 20

    async def script(b, ctx):
        await b.install(ctx, 60, BASE, page_size=PageSize.SIZE_2M, frame=0x200)
        await pysim.wait(ctx, 3)
        # Without a pause: valid stays up.
        ctx.set(b.dut.requests.valid, 1)
        for n in range(hits):
            ctx.set(b.dut.requests.payload.id, n)
            ctx.set(b.dut.requests.payload.va, BASE + 0x1001 * n)
            await pysim.until(ctx, b.dut.requests.ready)
        ctx.set(b.dut.requests.valid, 0)
        await b.answer(ctx, hits - 1)
        assert b.counter(ctx, "hits") == hits

    b = run(pysim, script, latency=latency)
    for n in range(hits):
        cycle, response = b.responses[n]
        assert cycle - b.accepted[n] == latency
        assert response.hit == 1
        assert response.pa == (0x200 << 12) + 0x1001 * n
        if n:
            assert b.accepted[n] == b.accepted[n - 1] + 1


def test_hit_under_miss(pysim, latency):
    async def script(b, ctx):
        await b.install(ctx, 1, BASE)
        await b.request(ctx, 2, BASE + 0x1000)
        slot = await b.miss(ctx, 1)
        await b.request(ctx, 3, BASE + 0x10)
        assert (await b.answer(ctx, 3)).hit == 1
        await b.fill(ctx, slot, frame=0x101)
        assert (await b.answer(ctx, 2)).hit == 0

    assert run(pysim, script, latency=latency).order == [1, 3, 2]


def test_merged_requests_are_judged_by_their_own_intent(pysim, latency):
    """Rule 5: a parked store does not inherit a load's verdict. O2: back-to-back misses to one page are two requests."""

    async def script(b, ctx):
        await b.request(ctx, 1, BASE + 1, Access.READ)
        await b.request(ctx, 2, BASE + 2, Access.WRITE)
        await b.request(ctx, 3, BASE + 3, Access.ATOMIC)
        await b.fill(ctx, await b.miss(ctx, 0), read_only=1)
        assert (await b.answer(ctx, 1)).status == Status.OK
        assert (await b.answer(ctx, 2)).status == Status.RO
        assert (await b.answer(ctx, 3)).status == Status.RO
        assert b.responses[1][1].pa == 0x10_0001
        assert b.responses[2][1].pa == 0
        # And on a hit.
        await b.request(ctx, 4, BASE + 4, Access.ATOMIC)
        await b.request(ctx, 5, BASE + 5, Access.PREFETCH)
        assert (await b.answer(ctx, 4)).status == Status.RO
        assert (await b.answer(ctx, 5)).status == Status.OK
        assert (b.counter(ctx, "misses"), b.counter(ctx, "merges")) == (1, 2)

    b = run(pysim, script, latency=latency, miss_merges=3)
    assert len(b.misses) == 1


@pytest.mark.parametrize("access", Access)
@pytest.mark.parametrize("bits", range(8))
def test_permissions_on_fill_and_on_hit(pysim, access, bits):
    flags = {
        "privilege": bits & 1,
        "read_only": bits >> 1 & 1,
        "atomic_disable": bits >> 2 & 1,
    }
    expected = Status.OK
    if flags["atomic_disable"] and access == Access.ATOMIC:
        expected = Status.ATOMIC
    if flags["read_only"] and access in (Access.WRITE, Access.ATOMIC):
        expected = Status.RO
    if flags["privilege"]:
        expected = Status.PRIV

    async def script(b, ctx):
        await b.request(ctx, 1, BASE, access)
        await b.fill(ctx, await b.miss(ctx, 0), aperture=PteAperture.SYSTEM_COHERENT, **flags)
        await b.answer(ctx, 1)
        await b.request(ctx, 2, BASE, access)
        for ident in (1, 2):
            answer = await b.answer(ctx, ident)
            assert Status(answer.status) == expected
            assert answer.hit == ident - 1
            ok = expected == Status.OK
            assert answer.pa == (0x10_0000 if ok else 0)
            assert answer.aperture == (2 if ok else 0)

    run(pysim, script)


@pytest.mark.parametrize(
    "status", [s for s in Status if s not in (Status.OK, Status.PRIV, Status.RO, Status.ATOMIC)]
)
def test_only_good_walks_are_cached(pysim, status, latency):
    """S8: after a fault, the mended entry is found without an invalidation."""

    async def script(b, ctx):
        page = 0x12_3456_789A if status > Status.NOT_RESIDENT else 0
        await b.request(ctx, 1, BASE + 0x123)
        await b.request(ctx, 2, BASE + 0x456, Access.WRITE)
        await b.fill(ctx, await b.miss(ctx, 0), status=status, frame=page)
        for ident in (1, 2):
            answer = await b.answer(ctx, ident)
            assert Status(answer.status) == status
            assert answer.flash_page == page
            assert answer.pa == page
            assert answer.hit == 0
        await b.request(ctx, 3, BASE)
        await b.fill(ctx, await b.miss(ctx, 1))
        assert (await b.answer(ctx, 3)).status == Status.OK
        assert b.counter(ctx, "faults") == (0 if status == Status.SPARSE else 2)

    run(pysim, script, latency=latency)


def test_pages_cover_what_they_should(pysim, latency):
    """S1 and S2: sizes back to back with frame bits set everywhere; tags keep their top bit."""
    frame = (1 << 35) - 1

    async def script(b, ctx):
        pages = [
            (BASE, PageSize.SIZE_2M, frame & ~0x1FF),
            (BASE + (1 << 21), PageSize.SIZE_64K, frame & ~0xF),
            (BASE + (1 << 21) + (1 << 16), PageSize.SIZE_4K, frame),
        ]
        ident = 0
        for va, size, number in pages:
            await b.install(ctx, ident, va + 0x123, page_size=size, frame=number)
            ident += 1
        for va, size, number in pages:
            for offset in (0, 0x123, size.bytes // 2 + 5, size.bytes - 1):
                before = len(b.misses)
                await b.request(ctx, ident, va + offset)
                answer = await b.answer(ctx, ident)
                assert answer.pa == (number << 12) + offset
                assert answer.page_size == size
                assert len(b.misses) == before
                ident += 1
        # Just outside, and aliases in one tag bit, miss.
        outside = [pages[2][0] + 0x1000, pages[1][0] + (1 << 17), pages[0][0] - 1]
        aliases = [va ^ (1 << bit) for va, _, _ in pages for bit in (21, 22, 30, 40, 47, 48)]
        known = {va >> 21 for va, _, _ in pages}
        for va in outside + [a for a in aliases if a >> 21 not in known]:
            before = len(b.misses)
            await b.request(ctx, ident % 64, va)
            slot = await b.miss(ctx, before)
            await b.fill(ctx, slot, status=Status.PTE, frame=0)
            b.responses.pop(ident % 64, None)
            await b.answer(ctx, ident % 64)
            b.responses.pop(ident % 64)
            ident += 1

    run(pysim, script, latency=latency)


def test_asids_do_not_share_entries_or_walks(pysim, latency):
    """O5 and L11."""

    async def script(b, ctx):
        await b.request(ctx, 1, BASE, asid=1)
        await b.request(ctx, 2, BASE, asid=2)
        first, second = await b.miss(ctx, 0), await b.miss(ctx, 1)
        await b.fill(ctx, second, frame=0x222)
        await b.fill(ctx, first, frame=0x111)
        await b.request(ctx, 3, BASE, asid=1)
        await b.request(ctx, 4, BASE, asid=2)
        for ident, frame in [(1, 0x111), (2, 0x222), (3, 0x111), (4, 0x222)]:
            assert (await b.answer(ctx, ident)).pa == frame << 12

    assert len(run(pysim, script, latency=latency).misses) == 2


def test_two_walks_into_one_2m_page_leave_one_entry(pysim, latency):
    """S7 and F10: no duplicates, no overlapping entries."""

    async def script(b, ctx):
        await b.install(ctx, 1, BASE + 0x5000, frame=0x7)
        await b.install(ctx, 2, BASE + 0x1_0000, page_size=PageSize.SIZE_64K, frame=0x10)
        await b.request(ctx, 3, BASE + 0x10_0000)
        await b.request(ctx, 4, BASE + 0x18_0000)
        first, second = await b.miss(ctx, 2), await b.miss(ctx, 3)
        for slot in (first, second):
            await b.fill(ctx, slot, page_size=PageSize.SIZE_2M, frame=0x400)
        await b.answer(ctx, 3)
        await b.answer(ctx, 4)
        await pysim.wait(ctx, 3)
        assert ctx.get(b.dut.valid).bit_count() == 1
        for ident, va in ((5, BASE + 0x5000), (6, BASE + 0x1_0000), (7, BASE + 0x10_0000)):
            await b.request(ctx, ident, va)
            assert (await b.answer(ctx, ident)).pa == 0x40_0000 + va - BASE

    run(pysim, script, latency=latency)


def test_misses_beyond_the_slots_wait(pysim, latency):
    async def script(b, ctx):
        await b.install(ctx, 9, BASE + 0x10_0000)
        for n in range(2):
            await b.request(ctx, n, BASE + 0x1000 * n)
        await b.request(ctx, 2, BASE + 0x2000)  # waits for a slot
        await b.miss(ctx, 2)
        await pysim.wait(ctx, 10)
        assert len(b.misses) == 3
        ctx.set(b.dut.requests.valid, 1)
        ctx.set(b.dut.requests.payload.id, 3)
        ctx.set(b.dut.requests.payload.va, BASE + 0x10_0000)
        await pysim.wait(ctx, 5)
        assert not ctx.get(b.dut.requests.ready)
        assert 3 not in b.responses
        await b.fill(ctx, b.misses[2][1], frame=0x201)
        await pysim.until(ctx, b.dut.requests.ready)
        ctx.set(b.dut.requests.valid, 0)
        slot = await b.miss(ctx, 3)
        assert slot == b.misses[2][1]
        await b.fill(ctx, b.misses[1][1], frame=0x200)
        await b.fill(ctx, slot, frame=0x202)
        for n in range(3):
            await b.answer(ctx, n)
        assert b.counter(ctx, "hold_cycles") > 10

    run(pysim, script, latency=latency)


def test_merges_beyond_the_places_wait_and_are_served(pysim, latency):
    """L7: every queue full, no request lost."""

    async def script(b, ctx):
        for n in range(2):
            await b.request(ctx, n, BASE + n)
        await b.request(ctx, 2, BASE + 2)
        await pysim.wait(ctx, 10)
        assert len(b.misses) == 1
        await b.fill(ctx, b.misses[0][1])
        for n in range(3):
            assert (await b.answer(ctx, n)).pa == 0x10_0000 + n
        # One of them came too late to wait on the walk.
        assert sum(b.responses[n][1].hit for n in range(3)) == 1

    assert len(run(pysim, script, latency=latency).misses) == 1


def test_fills_are_taken_while_responses_are_not(pysim, latency):
    async def script(b, ctx):
        b.take = False
        for n in range(2):
            await b.request(ctx, 2 * n, BASE + 0x1000 * n)
            await b.request(ctx, 2 * n + 1, BASE + 0x1000 * n)
        for n in range(2):
            await b.fill(ctx, await b.miss(ctx, n), frame=n)
        await pysim.wait(ctx, 20)
        assert b.responses == {}
        b.take = True
        for n in range(4):
            assert (await b.answer(ctx, n)).pa == (n // 2) << 12

    run(pysim, script, latency=latency)


def test_pseudo_lru_keeps_what_is_used(pysim, latency):
    async def script(b, ctx):
        for n in range(4):
            await b.install(ctx, n, BASE + 0x1000 * n, frame=n)
        ident = 10
        for round_ in range(6):
            await b.request(ctx, ident, BASE)
            assert (await b.answer(ctx, ident)).hit == 1
            await b.install(ctx, ident + 1, BASE + 0x10_0000 + 0x1000 * round_, frame=round_)
            ident += 2

    run(pysim, script, latency=latency)


def test_replacement_uses_every_entry(pysim, latency):
    """Free entries first: as many pages as entries all stay."""

    async def script(b, ctx):
        for n in range(8):
            await b.install(ctx, n, BASE + 0x1000 * n, frame=n)
        for n in range(8):
            await b.request(ctx, 10 + n, BASE + 0x1000 * n)
            assert (await b.answer(ctx, 10 + n)).hit == 1

    run(pysim, script, latency=latency, entries=8)


def test_invalidate_drops_entries(pysim, latency):
    async def script(b, ctx):
        await b.install(ctx, 1, BASE)
        await b.invalidate(ctx)
        assert ctx.get(b.dut.quiet)
        await b.request(ctx, 2, BASE)
        await b.fill(ctx, await b.miss(ctx, 1), frame=0x300)
        assert (await b.answer(ctx, 2)).pa == 0x30_0000

    run(pysim, script, latency=latency)


def test_walk_from_before_an_invalidation_never_fills(pysim, latency):
    """F2, F8: the old walk answers its requests and nobody else's, and leaves nothing behind."""

    async def script(b, ctx):
        await b.request(ctx, 1, BASE)
        old = await b.miss(ctx, 0)
        await b.invalidate(ctx)
        assert not ctx.get(b.dut.quiet)
        # Later requests to the page get a walk of their own.
        await b.request(ctx, 2, BASE)
        new = await b.miss(ctx, 1)
        assert new != old
        await b.fill(ctx, old, frame=0x111)
        assert (await b.answer(ctx, 1)).pa == 0x11_1000
        await pysim.wait(ctx, 2)
        assert ctx.get(b.dut.quiet)
        await b.request(ctx, 3, BASE)  # joins the new walk
        await pysim.wait(ctx, 3)
        assert 3 not in b.responses
        await b.fill(ctx, new, frame=0x222)
        assert (await b.answer(ctx, 2)).pa == 0x22_2000
        assert (await b.answer(ctx, 3)).pa == 0x22_2000
        assert b.counter(ctx, "dropped_fills") == 1
        assert b.counter(ctx, "fills") == 1

    run(pysim, script, latency=latency, miss_slots=3)


@pytest.mark.parametrize("skew", range(-3, 8))
def test_fill_and_invalidation_at_about_the_same_time(pysim, latency, skew):
    """F3, F4, F6: whichever comes first, no entry from before the invalidation is left after it."""

    async def script(b, ctx):
        await b.request(ctx, 1, BASE)
        slot = await b.miss(ctx, 0)
        await pysim.wait(ctx, 3)
        payload = b.dut.fills.payload
        for cycle in range(-3, 12):
            ctx.set(b.dut.fills.valid, cycle == 0)
            for name, value in {"tag": slot, **OK}.items():
                ctx.set(getattr(payload, name), value)
            ctx.set(b.dut.invalidate, cycle == skew)
            await ctx.tick()
        ctx.set(b.dut.fills.valid, 0)
        ctx.set(b.dut.invalidate, 0)
        await b.answer(ctx, 1)
        assert ctx.get(b.dut.quiet)
        await b.request(ctx, 2, BASE)
        await b.fill(ctx, await b.miss(ctx, 1), frame=0x222)
        assert (await b.answer(ctx, 2)).pa == 0x22_2000

    run(pysim, script, latency=latency)


@pytest.mark.parametrize("skew", range(6))
def test_request_and_invalidation_at_about_the_same_time(pysim, latency, skew):
    """F4: a request accepted after the strobe never gets what was there before."""

    async def script(b, ctx):
        await b.install(ctx, 1, BASE)
        await pysim.wait(ctx, 3)
        ctx.set(b.dut.requests.payload.va, BASE)
        ident, accepted = 10, {}
        for cycle in range(10):
            ctx.set(b.dut.requests.valid, 1)
            ctx.set(b.dut.requests.payload.id, ident)
            ctx.set(b.dut.invalidate, cycle == skew)
            ready = ctx.get(b.dut.requests.ready)
            await ctx.tick()
            accepted[ident] = cycle
            ident += ready
        ctx.set(b.dut.requests.valid, 0)
        ctx.set(b.dut.invalidate, 0)
        await b.fill(ctx, await b.miss(ctx, 1), frame=0x222)
        await pysim.wait(ctx, 20)
        assert len(b.misses) == 2
        for n in range(10, ident):
            _, response = b.responses[n]
            if accepted[n] > skew:
                assert response.pa == 0x22_2000
            else:
                assert response.pa in (0x10_0000, 0x22_2000)

    run(pysim, script, latency=latency, miss_merges=16)


def test_quiet_waits_for_responses_that_are_offered(pysim, latency):
    async def script(b, ctx):
        await b.install(ctx, 1, BASE)
        b.take = False
        await ctx.tick()
        await b.request(ctx, 2, BASE)
        await b.request(ctx, 3, BASE)
        await pysim.wait(ctx, 4)
        await b.invalidate(ctx)
        for _ in range(10):
            assert not ctx.get(b.dut.quiet)
            await ctx.tick()
        b.take = True
        await b.answer(ctx, 2)
        await b.answer(ctx, 3)
        await pysim.wait(ctx, 2)
        assert ctx.get(b.dut.quiet)

    run(pysim, script, latency=latency)


def test_quiet_waits_for_responses_of_old_walks(pysim, latency):
    """Not only for the walk, but until its answers have been taken."""

    async def script(b, ctx):
        b.take = False
        await b.request(ctx, 1, BASE)
        await b.request(ctx, 2, BASE)
        slot = await b.miss(ctx, 0)
        await pysim.wait(ctx, 5)
        await b.invalidate(ctx)
        await b.fill(ctx, slot)
        for _ in range(20):
            assert not ctx.get(b.dut.quiet)
            await ctx.tick()
        b.take = True
        await b.answer(ctx, 1)
        await b.answer(ctx, 2)
        await pysim.wait(ctx, 2)
        assert ctx.get(b.dut.quiet)

    run(pysim, script, latency=latency)


def test_one_slot_and_one_merge(pysim, latency):
    """L6: the smallest sizes make progress."""

    async def script(b, ctx):
        for n in range(6):
            await b.request(ctx, n, BASE + 0x1000 * (n % 3))
            if n < 3:
                await b.fill(ctx, await b.miss(ctx, n), frame=n)
        for n in range(6):
            assert (await b.answer(ctx, n)).pa == (n % 3) << 12

    run(pysim, script, latency=latency, miss_slots=1, miss_merges=1)


def test_refusals():
    for parameters, message in [
        ({"entries": 2}, "L1 entries must be an integer from 4 to 64, not 2"),
        ({"entries": 12}, "L1 entries must be a power of two, not 12"),
        ({"latency": 3}, "L1 latency must be an integer from 1 to 2, not 3"),
        ({"miss_slots": 0}, "L1 miss slots must be an integer from 1 to 16, not 0"),
        ({"miss_merges": 17}, "L1 merges per miss slot must be an integer from 1 to 16, not 17"),
        ({"id_bits": 0}, "Request id width must be an integer from 1 to 16, not 0"),
        ({"asid_bits": 17}, "ASID width must be an integer from 0 to 16, not 17"),
        ({"pa_bits": 59}, "Physical address width must be an integer from 32 to 58, not 59"),
    ]:
        with pytest.raises(ValueError) as caught:
            make(**parameters)
        assert str(caught.value) == message
    with pytest.raises(TypeError, match=r"^L1 entries must be an integer from 4 to 64, not '8'$"):
        make(entries="8")
