"""Writes what stands in dltune.json, from the values that read and write it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from autotune.cli.schema import make_json_schema
from benchmarks.analysis.verdicts import format_table

Schema = Mapping[str, Any]
WORDS: Final[Mapping[str, str]] = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
}
LARGEST_SHOWN: Final = 10**9  # a bound above it only keeps arithmetic from overflowing


def describe_schema() -> str:
    """Write a section for each object, the file first, then in the order in which they are met."""
    return "\n\n".join(_describe(name, schema) for name, schema in _walk(make_json_schema()))


def _walk(document: Schema) -> Iterator[tuple[str, Schema]]:
    """Go through all objects, each once, breadth first."""
    waiting, met = [("TunedFile", document)], {"TunedFile"}
    while waiting:
        name, schema = waiting.pop(0)
        yield name, schema
        found = re.findall(r'"#/\$defs/(\w+)"', json.dumps(schema.get("properties", {})))
        new = [other for other in dict.fromkeys(found) if other not in met]
        met.update(new)
        waiting += [(other, document["$defs"][other]) for other in new]


def _describe(name: str, schema: Schema) -> str:
    rows = [
        (f"`{field}`", write_type(one), _write_default(field, one, schema), one["description"])
        for field, one in schema.get("properties", {}).items()
    ]
    table = format_table(("field", "value", "default", "meaning"), rows) if rows else ""
    return "\n\n".join(part for part in (f"## {name}", schema["description"], table) if part)


def write_type(schema: Schema) -> str:
    """Write what may stand in a field, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return ", or ".join(dict.fromkeys(map(write_type, schema["anyOf"])))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    return _write_plain_type(schema)


def _write_plain_type(schema: Schema) -> str:
    kind = schema.get("type")
    if kind == "array" and "prefixItems" in schema:
        return f"{len(schema['prefixItems'])} of: {write_type(schema['prefixItems'][0])}"
    if kind == "array":
        return f"list of: {write_type(schema.get('items', {}))}"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"object of: {write_type(inner)}" if isinstance(inner, dict) else "object"
    word = "time (ISO 8601)" if schema.get("format") == "date-time" else WORDS.get(str(kind), "anything")
    return f"{word}{_write_bounds(schema)}"


def _write_bounds(schema: Schema) -> str:
    given = {"from": "minimum", "above": "exclusiveMinimum", "to": "maximum"}
    words = [
        f"{word} {schema[name]:g}" for word, name in given.items() if abs(schema.get(name, math.inf)) <= LARGEST_SHOWN
    ]
    return f", {' '.join(words)}" if words else ""


def _write_default(field: str, schema: Schema, parent: Schema) -> str:
    if field in parent.get("required", ()):
        return "required"
    return f"`{json.dumps(schema['default'])}`" if "default" in schema else "empty"
