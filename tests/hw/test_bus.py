# amaranth: UnusedElaboratable=no
import random

import pytest
from amaranth.hdl import unsigned
from amaranth.lib import data

from pagetide.hw.bus.arbiter import RoundRobinArbiter
from pagetide.hw.bus.axi4 import Axi4Signature, Burst, Feature, Response
from pagetide.hw.bus.queues import StreamQueue, TwoEntryQueue


def payload(signature, channel):
    return signature.members[channel].signature.members["payload"].shape


@pytest.mark.parametrize("make", [TwoEntryQueue, lambda s: StreamQueue(s, depth=5)])
@pytest.mark.parametrize(("put", "take"), [(1.0, 1.0), (0.5, 0.9), (0.9, 0.3)])
def test_queues_keep_order_and_lose_nothing(pysim, make, put, take):
    dut = make(unsigned(16))
    items, chance = list(range(1, 200)), random.Random(1)
    got, cycles = [], 0

    async def sender(ctx):
        for item in items:
            while chance.random() > put:
                await ctx.tick()
            await pysim.put(ctx, dut.i, item)

    async def receiver(ctx):
        nonlocal cycles
        while len(got) < len(items):
            ctx.set(dut.o.ready, chance.random() <= take)
            _, _, valid, ready, item, level = await ctx.tick().sample(
                dut.o.valid, dut.o.ready, dut.o.payload, dut.level
            )
            cycles += 1
            assert bool(valid) == (level > 0)
            if valid and ready:
                got.append(item)

    pysim.simulate(dut, sender, receiver, background=[pysim.rules(dut.o)])
    assert got == items
    if put == take == 1.0:
        assert cycles <= len(items) + 2, "one item per cycle"


@pytest.mark.parametrize("ports", [1, 2, 5])
def test_arbiter_serves_all_in_turn(pysim, ports):
    dut = RoundRobinArbiter(unsigned(8), ports=ports)
    each = 30
    got = []

    def sender(port):
        async def send(ctx):
            for item in range(each):
                await pysim.put(ctx, dut.i[port], item)

        return send

    async def receiver(ctx):
        chance = random.Random(2)
        while len(got) < each * ports:
            ctx.set(dut.o.ready, chance.random() < 0.7)
            _, _, valid, ready, item = await ctx.tick().sample(
                dut.o.valid, dut.o.ready, dut.o.payload
            )
            if valid and ready:
                got.append((item.port, item.item))

    pysim.simulate(
        dut, *(sender(p) for p in range(ports)), receiver, background=[pysim.rules(dut.o)]
    )
    for p in range(ports):
        assert [item for port, item in got if port == p] == list(range(each))
    # With all ports asking all the time, no port is served twice before every other was.
    for start in range(0, ports * (each - 1), ports):
        assert len({port for port, _ in got[start : start + ports]}) == ports


def test_axi4_members_follow_features():
    read = Axi4Signature(address_bits=40, data_bits=128, id_bits=4)
    assert set(read.members) == {"ar", "r"}
    full = Axi4Signature(
        address_bits=40, data_bits=128, id_bits=4, user_bits=2, features=set(Feature)
    )
    assert set(full.members) == {"ar", "r", "aw", "w", "b"}
    assert payload(full, "ar") == payload(full, "aw")
    fields = dict(payload(full, "ar"))
    assert list(fields) == [
        "id", "addr", "len", "size", "burst", "lock", "cache", "prot", "qos", "region", "user",
    ]  # fmt: skip
    assert fields["user"].width == 2
    assert dict(payload(full, "w"))["strb"].width == 16


def test_axi4_equality_and_repr():
    a = Axi4Signature(address_bits=40, data_bits=128, id_bits=4)
    assert a == Axi4Signature(address_bits=40, data_bits=128, id_bits=4, features=[Feature.READ])
    assert a != Axi4Signature(address_bits=40, data_bits=128, id_bits=5)
    assert repr(a) == (
        "Axi4Signature(address_bits=40, data_bits=128, id_bits=4, user_bits=0, features={READ})"
    )


def test_axi4_codes():
    """As in IHI 0022: tables of burst types and of RRESP/BRESP."""
    assert [b.value for b in (Burst.FIXED, Burst.INCR, Burst.WRAP)] == [0, 1, 2]
    assert [r.name for r in Response] == ["OKAY", "EXOKAY", "SLVERR", "DECERR"]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"address_bits": 65}, ValueError, "AXI4 address width must be 12 to 64 bits, not 65"),
        (
            {"data_bits": 96},
            ValueError,
            "AXI4 data width must be a power of two from 8 to 1024 bits, not 96",
        ),
        ({"id_bits": 33}, ValueError, "AXI4 id width must be 0 to 32 bits, not 33"),
        ({"user_bits": -1}, ValueError, "AXI4 user width must be 0 to 64 bits, not -1"),
        ({"features": {"read"}}, TypeError, "AXI4 features must be members of Feature, not 'read'"),
        ({"features": {Feature.QOS}}, ValueError, "AXI4 features must contain READ or WRITE"),
    ],
)
def test_axi4_refusals(changes, error, message):
    with pytest.raises(error) as caught:
        Axi4Signature(**{"address_bits": 40, "data_bits": 128, "id_bits": 4, **changes})
    assert str(caught.value) == message


def test_queue_and_arbiter_refusals():
    with pytest.raises(TypeError, match=r"^Queue depth must be a positive integer, not 0$"):
        StreamQueue(unsigned(8), depth=0)
    with pytest.raises(
        TypeError, match=r"^Number of arbiter ports must be a positive integer, not 1.5$"
    ):
        RoundRobinArbiter(data.StructLayout({"a": 1}), ports=1.5)
