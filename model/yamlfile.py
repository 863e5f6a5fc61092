"""YAML files with the line of every key, so that messages can point at it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from pagetide.model.errors import InputError

__all__ = ["parse_mapping", "parse_value", "read_text"]

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
        InputError: the text is no valid YAML, no mapping, has a key twice or a mapping that holds itself.
    """
    root, data = _parse(text, origin)
    if data is None:
        return {}, {}
    if not isinstance(data, dict):
        raise InputError(
            f"{origin}: the file must be a mapping of keys to values, such as 'key: value'"
        )
    places: dict[KeyPath, str] = {}
    for path, line in _lines(root, (), origin, ()):
        if path in places:
            raise InputError(
                f"{origin}:{line}: key {'.'.join(path)!r} is there twice; leave one of them out"
            )
        places[path] = f"{origin}:{line}"
    return data, places


def parse_value(text: str, origin: str) -> object:
    """Parse YAML text of any kind; raises `InputError` that begins with `origin` if it is no valid YAML."""
    return _parse(text, origin)[1]


def _parse(text: str, origin: str) -> tuple[yaml.Node | None, Any]:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader), yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{origin}:{mark.line + 1}" if mark else origin
        reason = getattr(error, "problem", None) or error
    except RecursionError:
        raise InputError(f"{origin}: nested too deeply for a configuration") from None
    except ValueError as error:  # of a date or a number that PyYAML takes for one
        where, reason = origin, error
    raise InputError(f"{where}: no valid YAML ({' '.join(str(reason).split())})")


def _lines(
    node: yaml.Node | None, path: KeyPath, origin: str, parents: tuple[yaml.Node, ...]
) -> Iterator[tuple[KeyPath, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            line = key.start_mark.line + 1
            yield here, line
            if value is node or any(value is parent for parent in parents):
                raise InputError(f"{origin}:{line}: {here[-1]!r} refers to itself; write it out")
            yield from _lines(value, here, origin, (*parents, node))
