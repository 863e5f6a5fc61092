"""The `System`: GPU, host, links, SSD and fault path that a workload runs on, read from YAML with units.

Every default carries its source in its description; most are Table 2 of the G10 paper (MICRO'23).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pagetide.model.artifact.quirks import Quirks
from pagetide.model.errors import InputError, did_you_mean
from pagetide.model.units import BytesPerSecond, CapacityBytes, Hertz, Picoseconds
from pagetide.model.yamlfile import parse_mapping, parse_value, read_text

__all__ = [
    "Engine",
    "FaultPath",
    "Gpu",
    "Host",
    "Link",
    "Ssd",
    "System",
    "load_system",
    "system_presets",
]


# Bounds that keep the engine's 63-bit bytes and picoseconds from overflowing in any run that could end.
_MAX_BYTES = 1 << 60
_MAX_PS = 10**12
_MIN_BYTES_PER_S = 10**6
_MAX_HZ = 10**12
_MAX_FAULTS = 1 << 31


class _Section(BaseModel):
    """Keys are the field names without their unit suffix; unknown keys are refused; values never change."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, serialize_by_alias=True
    )


def _quantity(
    default: str,
    key: str,
    *,
    description: str,
    gt: int | None = None,
    ge: int | None = None,
    le: int | None = None,
) -> Any:
    """Return a field whose key in files is `key` and whose default is a text with a unit (validated like a user's)."""
    return Field(default, alias=key, gt=gt, ge=ge, le=le, description=description)


class Gpu(_Section):
    """The GPU's own memory."""

    memory_bytes: CapacityBytes = _quantity(
        "40 GiB",
        "memory",
        gt=0,
        le=_MAX_BYTES,
        description="GPU memory (G10 Table 2: A100, 40 GB HBM2e)",
    )
    clock_hz: Hertz = _quantity(
        "1.2 GHz",
        "clock",
        gt=0,
        le=_MAX_HZ,
        description="clock in which cycles are counted (G10 artifact configuration)",
    )


class Host(_Section):
    """Host memory that tensors may be moved to."""

    memory_bytes: CapacityBytes = _quantity(
        "128 GiB",
        "memory",
        ge=0,
        le=_MAX_BYTES,
        description="host memory for tensors (G10 Table 2: 128 GB DDR4); 0 is allowed",
    )


class Link(_Section):
    """The GPU's link, shared by host and SSD traffic; both directions at once."""

    bandwidth_bytes_per_s: BytesPerSecond = _quantity(
        "15.754 GB/s",
        "bandwidth",
        ge=_MIN_BYTES_PER_S,
        description="each direction (G10 Table 2: PCIe 3.0 x16)",
    )
    latency_ps: Picoseconds = _quantity(
        "0 us",
        "latency",
        ge=0,
        le=_MAX_PS,
        description="added to each transfer; the paper states none, so none by default",
    )


class Ssd(_Section):
    """The SSD behind the same switch."""

    read_bandwidth_bytes_per_s: BytesPerSecond = _quantity(
        "3.2 GB/s", "read_bandwidth", ge=_MIN_BYTES_PER_S, description="G10 Table 2: Samsung SZ985"
    )
    write_bandwidth_bytes_per_s: BytesPerSecond = _quantity(
        "3.0 GB/s", "write_bandwidth", ge=_MIN_BYTES_PER_S, description="G10 Table 2: Samsung SZ985"
    )
    read_latency_ps: Picoseconds = _quantity(
        "20 us", "read_latency", ge=0, le=_MAX_PS, description="G10 Table 2"
    )
    write_latency_ps: Picoseconds = _quantity(
        "16 us", "write_latency", ge=0, le=_MAX_PS, description="G10 Table 2"
    )
    capacity_bytes: CapacityBytes = _quantity(
        "3.2 TB", "capacity", gt=0, le=_MAX_BYTES, description="G10 Table 2"
    )


class FaultPath(_Section):
    """GPU page faults served by the driver on the host, in batches (NVIDIA UVM driver)."""

    batch_latency_ps: Picoseconds = _quantity(
        "45 us",
        "batch_latency",
        ge=0,
        le=_MAX_PS,
        description="host time of a fault batch before data moves (G10 Table 2)",
    )
    batch_faults: int = Field(
        default=256,
        gt=0,
        le=_MAX_FAULTS,
        description="faults fetched in a batch (UVM driver, uvm_perf_fault_batch_count)",
    )
    faults_per_block: int = Field(
        default=6,
        gt=0,
        le=_MAX_FAULTS,
        description="faults until a 2 MiB block is resident: six sequential faults fill it with the UVM driver's density "
        "prefetcher at its default threshold of 51 % (Allen & Ge SC'21 measure 5.93 on regular access)",
    )
    overlap_eviction: bool = Field(
        default=False,
        description="whether a batch's evictions overlap its fetches; the stock driver evicts first (Kim et al., ASPLOS'20)",
    )

    @property
    def blocks_per_batch(self) -> int:
        """How many blocks one batch makes resident."""
        return max(1, self.batch_faults // self.faults_per_block)


class Engine(_Section):
    """How the timing engine looks at the system."""

    block_bytes: CapacityBytes = _quantity(
        "2 MiB",
        "block",
        ge=4096,
        le=_MAX_BYTES,
        description="largest range that moves as one (the UVM driver's va_block: 2 MiB)",
    )
    iterations: int = Field(
        default=2,
        ge=1,
        le=100,
        description="iterations run; the last is measured, those before warm up",
    )


class System(_Section):
    """Everything a planner and the engine need to know about the machine."""

    name: str = Field("g10-table2", description="name for reports")
    profile: Literal["faithful", "artifact"] = Field(
        "faithful",
        description="fidelity: 'faithful' is what the papers describe and physics allows, 'artifact' what the public G10 "
        "artifact computes (docs, 'Fidelity')",
    )
    gpu: Gpu = Gpu()
    host: Host = Host()
    link: Link = Link()
    ssd: Ssd = Ssd()
    fault: FaultPath = FaultPath()
    engine: Engine = Engine()
    quirks: Quirks = Quirks()

    @model_validator(mode="after")
    def _quirks_have_an_effect(self) -> "System":
        if self.profile != "artifact" and self.quirks != Quirks():
            raise ValueError(
                "quirks are for the profile 'artifact'; set profile to it or leave them out"
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the nested configuration with quantities as text, as a YAML file would have it.

        Quirks are a part of it in the profile ``artifact`` only.
        """
        return self.model_dump(
            mode="json", exclude=None if self.profile == "artifact" else {"quirks"}
        )

    def digest(self) -> str:
        """Return a short hash of every value; equal systems give equal digests."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:12]

    def describe(self) -> Iterator[tuple[str, str, str]]:
        """Yield (dotted key, value as text, description with source) for every key of `to_dict`."""
        yield from _describe(self, self.to_dict(), "")


def _describe(
    section: BaseModel, values: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, str, str]]:
    for field_name, info in type(section).model_fields.items():
        key = info.alias or field_name
        if key not in values:
            continue
        value = getattr(section, field_name)
        if isinstance(value, BaseModel):
            yield from _describe(value, values[key], f"{prefix}{key}.")
        else:
            text = values[key]
            yield (
                f"{prefix}{key}",
                str(text).lower() if isinstance(text, bool) else str(text),
                info.description or "",
            )


def system_presets() -> list[str]:
    """Return the names of the systems that ship with the package."""
    folder = resources.files("pagetide.model") / "systems"
    return sorted(
        item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml")
    )


def load_system(source: str | Path = "g10-table2", overrides: Sequence[str] = ()) -> System:
    """Read a system from a preset's name or a YAML file, then apply overrides.

    Args:
        source: name of a preset (`system_presets`) or path of a YAML file.
        overrides: ``"section.key=value"`` texts, for instance ``"ssd.read_bandwidth=6.4 GB/s"``.

    Raises:
        InputError: no such preset or file, no YAML, an unknown key, a wrong unit or an impossible value; the message
            names file, line and key.
    """
    origin, text = _read(source)
    data, places = parse_mapping(text, origin)
    for override in overrides:
        key, separator, value = override.partition("=")
        path = tuple(key.strip().split("."))
        if not separator or not all(path):
            raise InputError(
                f"override {override!r}: write section.key=value, for instance 'gpu.memory=80 GiB'"
            )
        origin_of_value = f"override {override!r}"
        _set(data, path, parse_value(value, origin_of_value), override)
        places[path] = origin_of_value
    try:
        return System.model_validate(data)
    except ValidationError as error:
        raise InputError(_explain(error, places, origin)) from None


def _read(source: str | Path) -> tuple[str, str]:
    if isinstance(source, str) and source in system_presets():
        return source, (resources.files("pagetide.model") / "systems" / f"{source}.yaml").read_text(
            encoding="utf-8"
        )
    path = Path(source)
    try:
        is_name = not path.suffix and not path.exists()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    if is_name:
        raise InputError(
            f"system {str(source)!r}: neither a preset nor a file; {did_you_mean(str(source), system_presets())}"
        )
    return str(path), read_text(path)


def _set(data: dict[str, Any], path: tuple[str, ...], value: object, override: str) -> None:
    for part in path[:-1]:
        section = data.get(part, {})
        if not isinstance(section, dict):
            raise InputError(f"override {override!r}: {part!r} is a value, not a section")
        # A copy: by a YAML alias two sections may be one object.
        copy = dict(section)
        data[part] = copy
        data = copy
    data[path[-1]] = value


def _known_keys(path: tuple[str, ...]) -> list[str]:
    section: type[BaseModel] = System
    for part in path:
        info = next((f for n, f in section.model_fields.items() if (f.alias or n) == part), None)
        annotation = info.annotation if info else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        section = annotation
    return [info.alias or name for name, info in section.model_fields.items()]


def _explain(error: ValidationError, places: Mapping[tuple[str, ...], str], origin: str) -> str:
    first = error.errors()[0]
    path = tuple(str(part) for part in first["loc"])
    where = next((places[path[:n]] for n in range(len(path), 0, -1) if path[:n] in places), origin)
    key = ".".join(path)
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown key {key!r}; {did_you_mean(path[-1], _known_keys(path[:-1]))}"
    if first["type"] == "model_type":
        return f"{where}: {key!r} is a section with the keys {', '.join(_known_keys(path))}, not {first['input']!r}"
    message = first["msg"].removeprefix("Value error, ")
    if not first["type"].startswith("value_error"):
        message = f"{message[0].lower()}{message[1:]}, but it is {first['input']!r}"
    return ": ".join(part for part in (where, key, message) if part)
