"""Lowering: from a workload to the stream of page touches that its kernels make.

Every tensor gets a range of virtual addresses of its own, weights first, as in G10 (paper, section 4.4: each tensor is
allocated once). Each kernel's operands are cut into one contiguous part for each requester, and a requester goes through its
parts of all operands side by side, as a streaming kernel does. One touch stands for `touch_bytes` of an operand: with touches
as large as pages, each page of each operand is touched once a kernel; with smaller ones, several times. An operand that is
read and written in place is touched twice, read before write.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagetide.model.columnar import load_columns, save_columns
from pagetide.model.errors import InputError
from pagetide.model.workload.workload import Workload

__all__ = ["VA_BITS", "AccessKind", "AccessStream", "VaLayout", "lay_out", "lower"]

VA_BITS = 49
"""Virtual addresses fit this many bits (NVIDIA MMU version 2)."""

_VERSION = 1
_BASE_VA = 1 << 32


class AccessKind(IntEnum):
    """Intent of a touch; the codes are those of NVIDIA's fault ACCESS_TYPE."""

    READ = 0
    WRITE = 1


@dataclass(frozen=True, eq=False)
class VaLayout:
    """Where each tensor lies in the virtual address space.

    Attributes:
        page_bytes: size of a page; every tensor begins at a page of its own.
        base_va: uint64[T], first byte of each tensor.
        pages: int64[T], pages of each tensor.
    """

    page_bytes: int
    base_va: NDArray[np.uint64]
    pages: NDArray[np.int64]

    @property
    def end_va(self) -> int:
        """First byte after the last tensor."""
        return int((self.base_va + (self.pages * self.page_bytes).astype(np.uint64)).max())


@dataclass(frozen=True, eq=False)
class AccessStream:
    """Touches as columns, by kernel, within it by requester, within that in the order of issue.

    Attributes:
        workload: name of the workload.
        page_bytes: size of the pages that tensors are laid out in.
        touch_bytes: granularity: one touch stands for this many bytes.
        requesters: number of requesters.
        va: uint64[N], byte address: the first byte that the touch stands for.
        requester: uint16[N].
        access: uint8[N] of `AccessKind`.
        kernel: int32[N], kernel of the workload.
        metadata: JSON values.
    """

    workload: str
    page_bytes: int
    touch_bytes: int
    requesters: int
    va: NDArray[np.uint64]
    requester: NDArray[np.uint16]
    access: NDArray[np.uint8]
    kernel: NDArray[np.int32]
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.va)

    def save(self, path: Path) -> None:
        """Write to one compressed file (`.npz`); the same stream gives the same bytes."""
        save_columns(
            path,
            kind="access-stream",
            version=_VERSION,
            header={
                "workload": self.workload,
                "page_bytes": self.page_bytes,
                "touch_bytes": self.touch_bytes,
                "requesters": self.requesters,
                "metadata": dict(self.metadata),
            },
            columns={
                "va": self.va,
                "requester": self.requester,
                "access": self.access,
                "kernel": self.kernel,
            },
        )

    @classmethod
    def load(cls, path: Path) -> "AccessStream":
        """Read what `save` wrote; raises `InputError` for a missing or damaged file."""
        types = {"va": np.uint64, "requester": np.uint16, "access": np.uint8, "kernel": np.int32}
        header, columns = load_columns(path, kind="access-stream", version=_VERSION, required=types)
        try:
            arrays: dict[str, Any] = {
                name: columns[name].astype(dtype, casting="safe") for name, dtype in types.items()
            }
            if len({array.shape for array in arrays.values()}) != 1 or arrays["va"].ndim != 1:
                raise ValueError("columns differ in length")
            return cls(
                workload=str(header["workload"]),
                page_bytes=int(header["page_bytes"]),
                touch_bytes=int(header["touch_bytes"]),
                requesters=int(header["requesters"]),
                metadata=dict(header["metadata"]),
                **arrays,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path}: damaged access-stream file ({error}); lower the workload again"
            ) from None


def lay_out(workload: Workload, page_bytes: int) -> VaLayout:
    """Give every tensor its range of virtual addresses: global tensors first, then the others, in order of id.

    Raises:
        InputError: the tensors do not fit the address space at this page size.
    """
    if page_bytes < 4096 or page_bytes & (page_bytes - 1):
        raise InputError(f"page size is {page_bytes} bytes; use a power of two from 4096 on")
    pages = -(-workload.tensors.size_bytes // page_bytes)
    order = np.argsort(~workload.tensors.is_global, kind="stable")
    first = np.zeros(len(order), dtype=np.int64)
    first[order[1:]] = np.cumsum(pages[order])[:-1]
    layout = VaLayout(
        page_bytes=page_bytes,
        base_va=(-(-_BASE_VA // page_bytes) * page_bytes + first * page_bytes).astype(np.uint64),
        pages=pages,
    )
    if layout.end_va > 1 << VA_BITS:
        raise InputError(
            f"workload {workload.name!r} needs addresses up to {layout.end_va:#x} with pages of {page_bytes} bytes, "
            f"beyond {VA_BITS} bits; use smaller pages"
        )
    return layout


def lower(
    workload: Workload,
    layout: VaLayout,
    *,
    touch_bytes: int | None = None,
    requesters: int = 8,
    kernels: range | None = None,
) -> AccessStream:
    """Return the touches of an iteration, or of some of its kernels.

    An operand of n touches is cut so that touch i goes to requester ``i * requesters // n``; an operand of fewer touches than
    requesters begins at a requester that depends on its id, so that small operands do not all fall on the first.

    Args:
        workload: what is lowered.
        layout: addresses of the tensors (`lay_out`).
        touch_bytes: granularity, a power of two from 128 to the page size; the page size if not given. Whole iterations
            take touches of 2 MiB, windows of kernels smaller ones.
        requesters: number of requesters, 1 to 65535.
        kernels: kernels to lower; all if not given.

    Raises:
        InputError: a number is out of range.
    """
    touch = layout.page_bytes if touch_bytes is None else touch_bytes
    if not 128 <= touch <= layout.page_bytes or touch & (touch - 1):
        raise InputError(
            f"touch granularity is {touch} bytes; use a power of two from 128 to the page size, {layout.page_bytes}"
        )
    if not 1 <= requesters <= 65535:
        raise InputError(f"requesters must be 1 to 65535, not {requesters}")
    chosen = kernels if kernels is not None else range(len(workload.kernels))
    if chosen.step != 1 or not 0 <= chosen.start <= chosen.stop <= len(workload.kernels):
        raise InputError(
            f"kernels {chosen.start} to {chosen.stop} are not a window of the {len(workload.kernels)} kernels"
        )

    parts = []
    for kind, lists in ((AccessKind.READ, workload.inputs), (AccessKind.WRITE, workload.outputs)):
        window = slice(int(lists.indptr[chosen.start]), int(lists.indptr[chosen.stop]))
        ids = lists.ids[window].astype(np.int64)
        parts.append((lists.rows[window], ids, np.full(len(ids), kind, dtype=np.uint8)))
    kernel = np.concatenate([part[0] for part in parts])
    tensor = np.concatenate([part[1] for part in parts])
    access = np.concatenate([part[2] for part in parts])

    count = -(-workload.tensors.size_bytes[tensor] // touch)
    entry = np.repeat(np.arange(len(tensor)), count)
    index = np.arange(len(entry)) - np.repeat(np.cumsum(count) - count, count)
    of = count[entry]
    part = index * requesters // of
    requester = np.where(of < requesters, (part + tensor[entry]) % requesters, part)
    # Position within the requester's part, as a share of it: parts of different lengths are gone through side by side.
    first_of_part = -(-part * of // requesters)
    length_of_part = -(-(part + 1) * of // requesters) - first_of_part
    share = (index - first_of_part + 0.5) / np.maximum(length_of_part, 1)
    order = np.lexsort((access[entry], entry, share, requester, kernel[entry]))
    entry = entry[order]
    return AccessStream(
        workload=workload.name,
        page_bytes=layout.page_bytes,
        touch_bytes=touch,
        requesters=requesters,
        va=layout.base_va[tensor[entry]] + (index[order] * touch).astype(np.uint64),
        requester=requester[order].astype(np.uint16),
        access=access[entry],
        kernel=kernel[entry].astype(np.int32),
        metadata={"kernels": [chosen.start, chosen.stop]},
    )
