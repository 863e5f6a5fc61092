"""The machine as the artifact's run configuration states it: its keys, its units, its defaults."""

from dataclasses import dataclass
from typing import Any

from pagetide.model.system import System

__all__ = ["PAGE_BYTES", "ArtifactConfig"]

PAGE_BYTES = 4096


@dataclass(frozen=True)
class ArtifactConfig:
    """A run configuration of the artifact with the values that its generator writes (`resources`, config generator).

    Attributes:
        gpu_memory_gb, cpu_memory_gb: memory sizes; the artifact's code decides place by place whether a GB is 2^30 or 10^9.
        cpu_pcie_gb_per_s, gpu_pcie_gb_per_s: host and GPU link, each direction.
        ssd_gb_per_s: SSD, read and write alike.
        gpu_frequency_ghz: cycles are counted in it.
        system_latency_us: far-fault handling. ssd_latency_us: SSD latency of planner and stall model.
        gpu_malloc_us_per_byte: time of an allocation.
        pcie_batch_pages: pages that one round moves.
        prefetch_degree: kernels that DeepUM+ looks ahead.
        delta: slack factor of the planner's safe-time tests (`delta_parameter`).
        iterations: iterations simulated by the page rounds.
        kernel_time_error: half width of the uniform error of kernel times (`kernel_time_std_dev`). seed: of that error.
        kernel_speedup: kernel times are divided by it.
    """

    gpu_memory_gb: float = 40.0
    cpu_memory_gb: float = 128.0
    cpu_pcie_gb_per_s: float = 15.754
    gpu_pcie_gb_per_s: float = 15.754
    ssd_gb_per_s: float = 3.2
    gpu_frequency_ghz: float = 1.2
    system_latency_us: float = 45.0
    ssd_latency_us: float = 20.0
    gpu_malloc_us_per_byte: float = 8.14e-7
    pcie_batch_pages: int = 50
    prefetch_degree: int = 8
    delta: float = 0.5
    iterations: int = 2
    kernel_time_error: float = 0.0
    seed: int = 1
    kernel_speedup: float = 1.0

    @classmethod
    def from_system(cls, system: System, **fields: Any) -> "ArtifactConfig":
        """Return the configuration nearest to a system: one SSD bandwidth, that of reading, for both directions.

        Latencies, fault path and engine of the system have no counterpart that has an effect in the artifact.
        """
        return cls(
            gpu_memory_gb=system.gpu.memory_bytes / 2**30,
            cpu_memory_gb=system.host.memory_bytes / 2**30,
            cpu_pcie_gb_per_s=system.link.bandwidth_bytes_per_s / 1e9,
            gpu_pcie_gb_per_s=system.link.bandwidth_bytes_per_s / 1e9,
            ssd_gb_per_s=system.ssd.read_bandwidth_bytes_per_s / 1e9,
            gpu_frequency_ghz=system.gpu.clock_hz / 1e9,
            **fields,
        )
