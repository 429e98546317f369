"""A tuning request from an in-memory object: a loader, a dataset, or a function that returns one."""

from __future__ import annotations

import os
from typing import Any

from pydantic import ValidationError

from autotune.errors import UsageError
from autotune.import_strings import find_import_string
from autotune.request import TuningRequest, WorkloadRequest
from autotune.runner.process_tree import TRIAL_ID_VARIABLE


def request_from_object(value: object, options: dict[str, Any]) -> TuningRequest:
    """Build the request for an object; a request is returned unchanged.

    Args:
        value: The object.
        options: Fields of `TuningRequest` and of its `WorkloadRequest`; a step or a collate function may be the
            function itself.

    Raises:
        UsageError: Trials could not import the object, or an option does not exist or has an invalid value.
    """
    if isinstance(value, TuningRequest):
        if options:
            raise UsageError(f"{', '.join(options)}: set these options in the TuningRequest.")
        return value
    if TRIAL_ID_VARIABLE in os.environ:
        raise UsageError('A trial imported a module that calls tune(): put the call under if __name__ == "__main__".')
    named = {name: find_import_string(one) if callable(one) else one for name, one in options.items()}
    workload = {name: one for name, one in named.items() if name in WorkloadRequest.model_fields}
    rest = {name: one for name, one in named.items() if name not in workload}
    try:
        return TuningRequest(workload=WorkloadRequest(dataset=find_import_string(value), **workload), **rest)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in problem["loc"])
        raise UsageError(f"tune(..., {name}=...): {problem['msg'].removeprefix('Value error, ')}.") from None
