"""An AXI4 read memory in Python, for tests at transaction level: latency, reordering, errors, backpressure."""

import random
from collections.abc import Callable
from typing import Any

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from pagetide.sim.streams import Gate, StreamRule, always, pack, port, unpack

__all__ = ["OKAY", "SLVERR", "AxiReadMemory"]

OKAY, SLVERR, DECERR = 0, 2, 3


class AxiReadMemory:
    """Answers single-beat reads of an AXI4 master port, and checks that its addresses keep the stream rule (AXI4, A3.2.1).

    Requests are answered after at least `latency` cycles; with `reorder` the next answer is drawn at random from those that
    are due, but answers to one id stay in order (AXI4, section A5.3).

    Args:
        dut: the design's handle.
        path: interface path of the port, for instance ``("memory",)``.
        ar_layout, r_layout: payload layouts of the address and the data channel.
        read: byte address -> 64-bit word, or None where there is no memory (answered with DECERR).
        latency: cycles from request to the earliest answer; a function is asked for each request.
        reorder: answer due requests in random order.
        error: asked for each request with its address; True answers SLVERR.
        gate: whether a request is taken, asked each cycle.
        seed: seed of the random order.
    """

    def __init__(
        self,
        dut: Any,
        *path: str | int,
        ar_layout: Any,
        r_layout: Any,
        read: Callable[[int], int | None],
        latency: int | Callable[[], int] = 1,
        reorder: bool = False,
        error: Callable[[int], bool] = lambda address: False,
        gate: Gate = always,
        seed: int = 1,
    ) -> None:
        self._ar_valid = port(dut, *path, "ar", "valid")
        self._ar_ready = port(dut, *path, "ar", "ready")
        self._ar_payload = port(dut, *path, "ar", "payload")
        self._r_valid = port(dut, *path, "r", "valid")
        self._r_ready = port(dut, *path, "r", "ready")
        self._r_payload = port(dut, *path, "r", "payload")
        self._clock = dut.clk
        self._ar_layout, self._r_layout = ar_layout, r_layout
        self._bytes = dict(r_layout)["data"].width // 8
        self._read, self._reorder, self._error, self._gate = read, reorder, error, gate
        self._latency: Callable[[], int] = latency if callable(latency) else lambda: latency
        self._random = random.Random(seed)
        self._rule = StreamRule("__".join([*map(str, path), "ar"]))
        self._waiting: list[tuple[int, int, int]] = []  # due cycle, id, packed answer
        self.reads = 0
        """Requests taken."""
        self._ar_ready.value = 0
        self._r_valid.value = 0

    def start(self) -> None:
        """Start answering."""
        cocotb.start_soon(self._run())

    def _answer(self, request: dict[str, int]) -> int:
        if request["len"]:
            raise ValueError(
                f"bursts are not modelled, but a read of {request['len'] + 1} beats came"
            )
        address = request["addr"] & -self._bytes
        data, response = 0, OKAY
        for n in range(self._bytes // 8):
            word = self._read(address + 8 * n)
            if word is None:
                response = DECERR
            else:
                data |= word << 64 * n
        if self._error(request["addr"]):
            response = SLVERR
        return pack(
            self._r_layout, {"id": request["id"], "data": data, "resp": response, "last": 1}
        )

    def _pick(self, cycle: int) -> int | None:
        """Index of the request to answer next, if one is due."""
        seen: set[int] = set()
        due = []
        for n, (when, ident, _) in enumerate(self._waiting):
            if ident not in seen and when <= cycle:
                due.append(n)
            seen.add(ident)
        if not due:
            return None
        return self._random.choice(due) if self._reorder else due[0]

    async def _run(self) -> None:
        falling, settled = FallingEdge(self._clock), ReadOnly()
        cycle = 0
        current: int | None = None
        while True:
            await falling
            cycle += 1
            if current is None:
                chosen = self._pick(cycle)
                if chosen is not None:
                    _, _, current = self._waiting.pop(chosen)
                    self._r_payload.value = current
            self._r_valid.value = int(current is not None)
            ready = self._gate()
            self._ar_ready.value = int(ready)
            await settled
            if current is not None and int(self._r_ready.value):
                current = None
            word = int(self._ar_payload.value) if int(self._ar_valid.value) else None
            self._rule.check(word, ready)
            if ready and word is not None:
                request = unpack(self._ar_layout, word)
                self._waiting.append(
                    (cycle + self._latency(), request["id"], self._answer(request))
                )
                self.reads += 1
