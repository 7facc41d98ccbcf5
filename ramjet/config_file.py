"""A configuration file as values: YAML, read more strictly than YAML itself is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from ramjet.config_faults import ConfigError


class _StrictLoader(yaml.SafeLoader):
    """YAML says nothing of a key that is given twice; the second would silently win."""


def _construct_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if not isinstance(key, str):
            name = key_node.value if isinstance(key_node, yaml.ScalarNode) else "a mapping or list"
            raise yaml.constructor.ConstructorError(
                None, None, f"{name}: keys are words; put it in quotes", key_node.start_mark
            )
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key} is given twice", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a file holds; an empty file holds an empty one.

    Raises:
        ConfigError: it cannot be read, or is no YAML of that kind.
    """
    values = read_document(path)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: must be a mapping of keys to values, not a {type(values).__name__}")
    return values


def read_document(path: Path) -> Any:
    """Whatever a file holds; None for an empty one.

    Raises:
        ConfigError: it cannot be read, or is no YAML; with line and column, and without the line itself, which may hold a
            secret.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        told = re.sub(r"'.*'", "'...'", error.problem or error.context or "", flags=re.DOTALL)
        raise ConfigError(f"{path}: {where}is not YAML: {told}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not YAML: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {type(error).__name__}") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply to be a configuration") from None
