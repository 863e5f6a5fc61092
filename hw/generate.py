"""Verilog of a component, and the JSON-ready description that lies beside it."""

from amaranth.back import verilog
from amaranth.hdl import Shape
from amaranth.lib import data, enum, wiring

__all__ = ["generate_verilog", "sidecar"]


def generate_verilog(component, name) -> str:
    """Return the Verilog of `component` with top module `name`; the same component gives the same bytes.

    Port names join the members' path with two underscores; structured payloads are flat vectors, least significant field
    first. The clock is ``clk``, the synchronous reset ``rst``.

    Raises
    ------
    TypeError
        If `component` is no `wiring.Component`.
    ValueError
        If `name` is no Verilog identifier, or contains two underscores in a row (Verilator stumbles over these).
    """
    if not isinstance(component, wiring.Component):
        raise TypeError(f"Component must be a wiring.Component, not {component!r}")
    if not name.isidentifier() or not name.isascii() or "__" in name:
        raise ValueError(
            f"Top module name must be a Verilog identifier without double underscores, not {name!r}"
        )
    return verilog.convert(component, name=name, emit_src=False, strip_internal_attrs=True)


def sidecar(component) -> dict:
    """Return ports, parameters and probe paths of `component` as plain dictionaries (for a JSON file).

    Keys: ``ports`` (list of ``name``, ``direction`` "in" or "out", ``width`` in bits, and ``fields`` for structured
    ports), ``parameters`` (of the component's configuration, if it has one), ``probes`` (dotted name to
    signal path). A field has ``name``, ``offset`` and ``width`` in bits, and ``enum`` (name to code) if its codes have names.
    Clock and reset are not listed.
    """
    ports = []
    for path, member, _ in component.signature.flatten(component):
        port = {
            "name": "__".join(str(part) for part in path),
            "direction": "in" if member.flow == wiring.In else "out",
            "width": Shape.cast(member.shape).width,
        }
        if isinstance(member.shape, data.Layout):
            port["fields"] = [
                _field(name, field) for name, field in member.shape
            ]
        ports.append(port)
    config = getattr(component, "config", None)
    probes = getattr(component, "probes", None)
    return {
        "ports": ports,
        "parameters": config.to_dict() if config is not None else {},
        "probes": probes() if probes is not None else {},
    }


def _field(name, field):
    entry = {"name": name, "offset": field.offset, "width": Shape.cast(field.shape).width}
    if isinstance(field.shape, enum.EnumType):
        entry["enum"] = {code.name: code.value for code in field.shape}
    return entry
