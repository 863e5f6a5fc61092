"""DeepUM's tables and chain in plain Python: the specification that the compiled policy and hardware are compared with.

It does what `pagetide.model.engine.deepum` does, decision by decision, with dicts and lists and without a thought for speed. Blocks
and execution IDs are small integers. Whether a block is in GPU memory or on its way there is asked of the caller.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["BlockTable", "ReferenceDeepum"]


@dataclass
class BlockTable:
    """The block table of one execution ID (DeepUM, section 4.1).

    Attributes:
        rows, ways, successors: its size.
        sets: row -> entries, least recently used first; an entry is a block and its successors, most recent first.
        start, end: block of the first fault after the change to this kernel, and of the last before the change away.
    """

    rows: int
    ways: int
    successors: int
    sets: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    start: int | None = None
    end: int | None = None

    def get(self, block: int) -> list[int] | None:
        """Return the successors of a block, None if it has no entry; a look-up does not make the entry recent."""
        return self.sets.get(block % self.rows, {}).get(block)

    def use(self, block: int) -> bool:
        """Make a block's entry the most recent of its set, with a new one if it has none; return whether it had one."""
        entries = self.sets.setdefault(block % self.rows, {})
        found = block in entries
        if not found and len(entries) == self.ways:
            del entries[next(iter(entries))]
        entries[block] = entries.pop(block, [])
        return found

    def link(self, block: int, successor: int) -> None:
        """Make `successor` the most recent one of a block that has an entry; the least recent one falls off."""
        known = self.get(block)
        if known is None or block == successor:
            return
        if successor in known:
            known.remove(successor)
        known.insert(0, successor)
        del known[self.successors :]


class ReferenceDeepum:
    """The policy's decisions.

    Args:
        options: as `DeepumOptions.to_dict` gives them.
        coming: tells whether a block is in GPU memory or on its way there.
    """

    def __init__(self, options: Mapping[str, int], coming: Callable[[int], bool]) -> None:
        self._options = options
        self._coming = coming
        self._extend = bool(options["extend"])
        self.records: dict[tuple[int | None, int | None, int | None, int], int] = {}
        self.latest: dict[int, int] = {}
        self.tables: dict[int, BlockTable] = {}
        self.queue: deque[tuple[int, int]] = deque()
        """Commands: block, and execution ID that is expected to need it."""
        self._queued: set[int] = set()
        self._needed_until: dict[int, int] = {}
        self.sequence = 0
        self._running: int | None = None
        self._before: tuple[int | None, int | None, int | None] = (None, None, None)  # oldest first
        self._last: int | None = None
        self._chain: tuple[tuple[int | None, int | None, int | None], int] | None = None
        self._ahead = 0
        self._expected: dict[int, int] = {}

    def table(self, execution: int) -> BlockTable:
        """Return the table of an execution ID, made when first asked for."""
        o = self._options
        return self.tables.setdefault(execution, BlockTable(o["rows"], o["ways"], o["successors"]))

    def predict(
        self, before: tuple[int | None, int | None, int | None], current: int
    ) -> int | None:
        """Return the execution ID expected after `current`, given the three before it, oldest first."""
        found = self.records.get((*before, current))
        if found is None and self._options["history_fallback"]:
            return self.latest.get(current)
        return found

    def kernel_started(self, execution: int) -> None:
        """A kernel starts: learn the change, then move the window of the chain on."""
        if self._running is not None:
            if self._last is not None and not self._extend:
                self.table(self._running).end = self._last
            self.records[(*self._before, self._running)] = execution
            self.latest[self._running] = execution
            self._before = (*self._before[1:], self._running)
        self._running = execution
        self._last = None
        self.sequence += 1
        self._ahead -= 1
        if self._chain is not None:
            if self._expected[self.sequence] == execution:
                self._advance()
            else:
                self._chain = None

    def block_faulted(self, block: int) -> None:
        """The running kernel has faulted on a block: start a chain from what is known, then learn."""
        if self._running is None:
            raise ValueError("a block faulted before the first kernel has started")
        table = self.table(self._running)
        self._chain = None
        if self._options["prefetch"] and table.get(block) is not None:
            self._ahead = 0
            self._walk(self._running, block)
            self._chain = (self._before, self._running)
            self._ahead = 1
            self._advance()
        if self._last is not None:
            table.link(self._last, block)
        elif not self._extend or table.start is None:
            table.start = block
        elif table.start != block and table.end is not None:
            table.link(table.end, block)
        if not table.use(block) and self._extend:
            table.end = block
        self._last = block

    def is_needed(self, block: int) -> bool:
        """Whether the running kernel or one of the next N is expected to need a block."""
        return self._needed_until.get(block, -1) >= self.sequence

    def next_command(self) -> tuple[int, int] | None:
        """Return the first command still worth carrying out, which stays queued, and drop those before it."""
        while self.queue:
            block, execution = self.queue[0]
            if block in self._queued and self.is_needed(block) and not self._coming(block):
                return block, execution
            self.remove_command()
        return None

    def remove_command(self) -> None:
        """Take the first command off the queue."""
        self._queued.discard(self.queue.popleft()[0])

    def _advance(self) -> None:
        while self._chain is not None and self._ahead <= self._options["degree"]:
            before, current = self._chain
            following = self.predict(before, current)
            if following is None:
                self._chain = None
                return
            self._chain = ((*before[1:], current), following)
            self._expected[self.sequence + self._ahead] = following
            start = self.table(following).start
            if start is not None:
                self._walk(following, start)
            self._ahead += 1

    def _walk(self, execution: int, first: int) -> None:
        table = self.table(execution)
        frontier: deque[int] = deque()
        visited: set[int] = set()

        def visit(block: int) -> None:
            if block in visited:
                return
            visited.add(block)
            frontier.append(block)
            until = self._needed_until.get(block, -1)
            self._needed_until[block] = max(until, self.sequence + self._ahead)
            full = len(self.queue) == self._options["queue"]
            if block not in self._queued and not self._coming(block) and not full:
                self.queue.append((block, execution))
                self._queued.add(block)

        visit(first)
        while frontier:
            block = frontier.popleft()
            if block == table.end and not self._extend:
                return
            for successor in table.get(block) or ():
                visit(successor)
