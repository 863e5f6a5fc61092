"""Makes autodoc show contracts of classes whose machinery it does not know.

Components and layouts of Amaranth get the signature of their constructor, configuration types their keys, and
enumerations their members.
"""

import enum
import inspect
from typing import Any

from amaranth.hdl import Elaboratable
from amaranth.lib import data
from pydantic import BaseModel
from sphinx.application import Sphinx


def signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, text: str | None, returns: str | None
) -> tuple[str, str] | None:
    """Give classes the signature that callers see."""
    if not inspect.isclass(obj):
        return None
    if issubclass(obj, BaseModel):
        return "(**keys)", ""
    if issubclass(obj, enum.Enum):
        return "(value)", ""
    if issubclass(obj, (Elaboratable, data.Layout)):
        parameters = list(inspect.signature(obj.__init__).parameters.values())[1:]
        return str(inspect.Signature(parameters)), ""
    return None


def docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Append keys of configuration types and members of enumerations."""
    if not inspect.isclass(obj):
        return
    rows: list[tuple[str, str]] = []
    if issubclass(obj, BaseModel):
        for field_name, info in obj.model_fields.items():
            key = info.alias or field_name
            default = (
                ""
                if inspect.isclass(info.annotation) and issubclass(info.annotation, BaseModel)
                else f" (default ``{info.default}``)"
            )
            rows.append(
                (
                    f"``{key}``, attribute ``{field_name}``",
                    f"{info.description or 'section'}{default}",
                )
            )
        title = "Keys"
    elif issubclass(obj, enum.Enum):
        documented = {member for (owner, member) in _attribute_docs(obj) if owner == obj.__name__}
        rows = [
            (f"``{member.name}``", f"``{member.value!r}``")
            for member in obj
            if member.name not in documented
        ]
        title = "Codes"
    if rows:
        lines += ["", f".. rubric:: {title}", ""]
        for head, text in rows:
            lines.append(f"* {head}: {text}")
        lines.append("")


def _attribute_docs(obj: type) -> Any:
    from sphinx.pycode import ModuleAnalyzer

    return ModuleAnalyzer.for_module(obj.__module__).find_attr_docs()


def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out what every class of a kind has and says nothing about it."""
    return True if name in ("elaborate", "model_config") else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the three to autodoc."""
    app.connect("autodoc-process-signature", signature)
    # Before napoleon, which comes at the default priority, it would take the list for a section.
    app.connect("autodoc-process-docstring", docstring, priority=900)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
