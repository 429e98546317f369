"""`dltune schema`: what may stand in dltune.json?"""

from __future__ import annotations

import json

import click

from autotune.commands.epilog import epilog
from autotune.commands.errors import exit_on_error
from autotune.commands.output import print_result


@click.command(epilog=epilog("dltune schema > dltune.schema.json"))
def schema() -> None:
    """Print the JSON Schema of dltune.json.

    For editors and validators.
    """
    from autotune.profiles.schema import SCHEMA_ID, TunedFile

    document = TunedFile.model_json_schema(by_alias=True)
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **document}
    with exit_on_error():
        print_result(json.dumps(document, indent=2))
