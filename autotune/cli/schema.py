"""`dltune schema`: what may stand in dltune.json?"""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import click

from autotune.cli.epilog import epilog
from autotune.cli.errors import exit_on_error
from autotune.cli.output import print_result


@click.command(epilog=epilog("dltune schema > dltune.schema.json"))
def schema() -> None:
    """Print the JSON Schema of dltune.json.

    For editors and validators.
    """
    from autotune.profiles.schema import SCHEMA_ID

    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **make_json_schema()}
    with exit_on_error():
        print_result(json.dumps(document, indent=2))


def make_json_schema() -> dict[str, Any]:
    """Make the schema of the file, in which every field is described by what the docstrings say of it."""
    from autotune.profiles.schema import TunedFile

    document = TunedFile.model_json_schema(by_alias=True)
    for one in (document, *document["$defs"].values()):
        one["description"], meanings = read_docstring(one.get("description", ""))
        for field, found in one.get("properties", {}).items():
            found["description"] = meanings[field]
    return document


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Take a docstring in Google's style apart: what stands before the attributes, and what each of them is."""
    summary, _, attributes = inspect.cleandoc(text).partition("\nAttributes:\n")
    found = re.findall(r"^    (\$?\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE)
    return summary.strip(), {name: re.sub(r"\s+", " ", meaning) for name, meaning in found}
