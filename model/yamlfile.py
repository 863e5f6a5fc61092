"""YAML files with the line of every key, so that messages can point at it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from pagetide.model.errors import InputError

__all__ = ["parse_mapping", "read_text"]

KeyPath = tuple[str, ...]


def read_text(path: Path) -> str:
    """Return the text of a file; raises `InputError` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None


def parse_mapping(text: str, origin: str) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """Parse YAML text whose top level is a mapping.

    Args:
        text: the YAML; empty text is an empty mapping.
        origin: file or preset name for messages.

    Returns:
        The data, and for each key path where it stands (``"file:line"``).

    Raises:
        InputError: the text is no valid YAML, or no mapping.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{origin}:{mark.line + 1}" if mark else origin
        raise InputError(
            f"{where}: no valid YAML ({getattr(error, 'problem', None) or error})"
        ) from None
    if data is None:
        return {}, {}
    if not isinstance(data, dict):
        raise InputError(
            f"{origin}: the file must be a mapping of keys to values, such as 'key: value'"
        )
    return data, {path: f"{origin}:{line}" for path, line in _lines(root, ())}


def _lines(node: yaml.Node | None, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            yield here, key.start_mark.line + 1
            yield from _lines(value, here)
