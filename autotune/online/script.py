"""`dltune run`: executes a training script unchanged, with the autopilot on every DataLoader that it iterates over."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from torch.utils.data import DataLoader, get_worker_info

from autotune.errors import UsageError
from autotune.online.attach import SWITCH, Options, attach, explain_refusal
from autotune.online.autopilot import Autopilot
from autotune.online.epoch import WorkerGroup
from autotune.system.software import is_library

_PLACE: Final = "_dltune_place"  # attribute of a loader: the line of the user's code that made it


class TunedScriptLoader(NamedTuple):
    """A loader of a script: where it was made, and its autopilot."""

    place: str
    state: Autopilot


def run_script(script: str, arguments: Sequence[str], options: Options) -> None:
    """Execute a script as `python script arguments` does, and report what each of its loaders got.

    Raises:
        UsageError: There is no such file.
    """
    path = Path(script)
    if not path.is_file():
        raise UsageError(f"{script} is not a file. Run: dltune run train.py ARGS.")
    sys.argv[:], sys.path[0] = [script, *arguments], str(path.resolve().parent)
    if os.environ.get(SWITCH) == "never":
        runpy.run_path(script, run_name="__main__")
        return
    with tune_all_loaders(options) as loaders:
        try:
            runpy.run_path(script, run_name="__main__")
        finally:
            for sentence in describe_loaders(loaders):
                options.show(sentence)


@contextmanager
def tune_all_loaders(options: Options) -> Iterator[list[TunedScriptLoader]]:
    """Attach the autopilot to each DataLoader when it is first iterated over; yield the list of these loaders."""
    init: Callable[..., None] = DataLoader.__init__
    iterate: Callable[[Any], Iterator[Any]] = DataLoader.__iter__
    tuned = list[TunedScriptLoader]()
    explained = set[str]()

    def init_and_note(loader: Any, *arguments: Any, **kwargs: Any) -> None:
        init(loader, *arguments, **kwargs)
        loader.__dict__.setdefault(_PLACE, find_place())

    def attach_and_iterate(loader: Any) -> Iterator[Any]:
        if get_worker_info() is not None or any(isinstance(one, WorkerGroup) for one in _list_samplers(loader)):
            return iterate(loader)
        place = loader.__dict__[_PLACE]
        if reason := explain_refusal(loader, type(loader)):
            if place not in explained:
                explained.add(place)
                options.show(f"the settings of the loader of {place} stay: {reason}.")
            return iterate(loader)
        attach(loader, options)
        iterator: Iterator[Any] = iter(loader)
        tuned.append(TunedScriptLoader(place, loader.autopilot_state))
        return iterator

    DataLoader.__init__ = init_and_note  # type: ignore[method-assign,assignment]  # of all classes of loaders
    DataLoader.__iter__ = attach_and_iterate  # type: ignore[method-assign,assignment]
    try:
        yield tuned
    finally:
        DataLoader.__init__ = init  # type: ignore[method-assign]
        DataLoader.__iter__ = iterate  # type: ignore[method-assign,assignment]


def _list_samplers(loader: Any) -> tuple[Any, Any]:
    return loader.sampler, loader.batch_sampler


def find_place() -> str:
    """Return the nearest line of the user's own code that called this, such as `train.py:31`."""
    frame = sys._getframe(2)
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def describe_loaders(loaders: Sequence[TunedScriptLoader]) -> Iterator[str]:
    """Yield a sentence for each loader, with the arguments to change; or one that there was none."""
    if not loaders:
        yield "the script iterated over no DataLoader that can be tuned."
    for place, state in loaders:
        controller, change = state.controller, ""
        if controller.final_window is not None and controller.settings != controller.own:
            workers, prefetch = controller.settings
            arguments = f"num_workers={workers}" + f", prefetch_factor={prefetch}" * bool(workers)
            change = f" Change it to DataLoader(..., {arguments})."
        yield f"loader of {place}: {state.describe()}{change}"
