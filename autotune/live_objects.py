"""By which import string do trials find what somebody holds in a variable? Nothing is pickled: they import it again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pydantic import ValidationError

from autotune.errors import UsageError
from autotune.request import TuningRequest, WorkloadRequest
from autotune.runner.process_tree import TRIAL_ID_VARIABLE

_NOTEBOOK: Final = (
    "Trials are processes of their own, which import it by name. Put what makes it into a file (in a notebook by a "
    "cell that begins with %%writefile loaders.py), and import it from there: from loaders import train_loader"
)


def request_for(value: object, options: dict[str, Any]) -> TuningRequest:
    """Make a request of a loader, a dataset, or a function that makes one; one that is made already stays.

    Args:
        value: The object.
        options: Fields of `TuningRequest` and of its `WorkloadRequest`, by name; a step or a collate function may be
            the function itself.

    Raises:
        UsageError: Trials could not import it, or an option is none or has a value that it cannot have.
    """
    if isinstance(value, TuningRequest):
        if options:
            raise UsageError(f"{', '.join(options)}: options stand in the TuningRequest, where one is given.")
        return value
    if TRIAL_ID_VARIABLE in os.environ:
        raise UsageError(
            'tune() was called by a module that a trial imports: put the call under if __name__ == "__main__".'
        )
    named = {name: name_object(one) if callable(one) else one for name, one in options.items()}
    own = {name: one for name, one in named.items() if name in WorkloadRequest.model_fields}
    rest = {name: one for name, one in named.items() if name not in own}
    try:
        return TuningRequest(workload=WorkloadRequest(dataset=name_object(value), **own), **rest)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise UsageError(f"tune(..., {place}=...): {problem['msg'].removeprefix('Value error, ')}.") from None


def name_object(value: object) -> str:
    """Name an object by the module that it was defined in.

    Raises:
        UsageError: No module holds it by a name, or only what is no file.
    """
    qualified = getattr(value, "__qualname__", None) if callable(value) else None
    if isinstance(qualified, str) and "<" in qualified:
        raise UsageError(
            f"{qualified} is defined inside a function or is a lambda, so that no module has it by a name. Define it "
            "at the top of a module with def, and give that."
        )
    found = sorted(_find_names(value, qualified), key=lambda one: one[0].__name__ == "__main__")
    if not found:
        raise UsageError(
            f"This {type(value).__name__} stands in no module by a name: it was made inside a function, or replaced. "
            "Make it by a function at the top of a module, def make_loader(): ..., and give that: tune(make_loader)."
        )
    module, name = found[0]
    return _name_in_main(module, name) if module.__name__ == "__main__" else _name_in(module, name)


def _find_names(value: object, qualified: str | None) -> Iterator[tuple[ModuleType, str]]:
    """Find the modules that hold it, and under which name; its own module first."""
    home = sys.modules.get(getattr(value, "__module__", None) or "")
    if qualified is not None and home is not None:
        yield home, qualified
        return
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            yield from ((module, name) for name, one in list(vars(module).items()) if one is value and name != "_")


def _name_in_main(module: ModuleType, name: str) -> str:
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        raise UsageError(f"{name} lives in this session only, in a notebook or an interpreter. {_NOTEBOOK}")
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name:  # python -m
        return f"{spec.name.removesuffix('.__main__')}:{name}"
    return f"{os.path.relpath(file)}:{name}"


def _name_in(module: ModuleType, name: str) -> str:
    """Name it by its module, or by its file where only the folder of the script that was started leads to it."""
    file = getattr(module, "__file__", None)
    main = getattr(sys.modules["__main__"], "__file__", None)
    if file is None or main is None or "." in module.__name__:
        return f"{module.__name__}:{name}"
    folder = Path(file).resolve().parent
    is_beside = folder == Path(main).resolve().parent and folder != Path.cwd().resolve()
    return f"{os.path.relpath(file)}:{name}" if is_beside else f"{module.__name__}:{name}"
