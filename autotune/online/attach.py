"""`autotune.autopilot`: attaches the autopilot to the loaders of PyTorch, Lightning, transformers and accelerate."""

from __future__ import annotations

import ast
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset

from autotune.errors import UsageError
from autotune.online.autopilot import Autopilot, print_sentence
from autotune.online.limits import WorkerLimits
from autotune.online.result import find_start, save_result
from autotune.system.software import read_local_world_size

Target = TypeVar("Target")
SWITCH: Final = "DLTUNE_AUTOPILOT"
_METHODS: Final = ("train_dataloader", "get_train_dataloader")  # of Lightning, and of transformers


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `autopilot`."""

    profile: str | None = "dltune.json"
    max_workers: int | None = None
    max_memory: str = "80%"
    quiet: bool = False

    def show(self, sentence: str) -> None:
        """Print a sentence unless the user wants none."""
        if not self.quiet:
            print_sentence(sentence)


def _iterate(loader: Any) -> Iterator[Any]:
    """Start an epoch of a tuned loader; its class has this function as `__iter__`."""
    options: Options = loader.autopilot_options
    if loader.autopilot_state is None:
        if reason := explain_refusal(loader, type(loader).__bases__[0]):
            options.show(f"the settings stay: {reason}.")
            loader.__class__ = type(loader).__bases__[0]
            return iter(loader)
        processes = read_local_world_size()
        limits = WorkerLimits(options.max_memory, options.max_workers, processes)
        path = None if options.profile is None else Path(options.profile)
        start = None if path is None else find_start(path, loader, processes)
        save = None if path is None else partial(save_result, path, processes=processes)
        loader.autopilot_state = Autopilot(loader, limits, start, options.show, save)
    state: Autopilot = loader.autopilot_state
    return state.start_epoch(loader)


def autopilot(
    target: Target,
    profile: str | None = "dltune.json",
    *,
    max_workers: int | None = None,
    max_memory: str = "80%",
    quiet: bool = False,
) -> Target:
    """Tune a DataLoader's workers in the training run itself; batches, their order and errors stay the same.

    `DLTUNE_AUTOPILOT=never` in the environment switches it off.

    Args:
        target: A DataLoader, also one prepared by accelerate; a Lightning module or data module; or a transformers
            Trainer.
        profile: The tuned file in which the result is saved, and with which the next run starts; None for no file.
        max_workers: The most workers.
        max_memory: Host memory for added workers: a share of what is available, such as `80%`, or a size.
        quiet: Whether to print nothing.

    Returns:
        The target itself.

    Raises:
        UsageError: The target has no training loader.
    """
    options = Options(profile, max_workers, max_memory, quiet)
    if (switch := os.environ.get(SWITCH, "")) not in ("", "never"):
        raise UsageError(f"{SWITCH} is {switch!r}: only never is possible.")
    if switch:
        return target
    loader: Any = getattr(target, "base_dataloader", target)
    if isinstance(loader, DataLoader):
        attach(loader, options)
        return target
    for name in _METHODS:
        if callable(make := getattr(target, name, None)):
            setattr(target, name, _attach_result(make, options))
            return target
    raise UsageError(
        f"{type(target).__name__} has no training loader: pass a DataLoader, a Lightning module or data module, or a "
        "transformers Trainer."
    )


def attach(loader: DataLoader[Any], options: Options) -> None:
    """Give a loader a class with the autopilot; libraries that copy the loader by its class copy it, too."""
    cls = type(loader)
    if not hasattr(cls, "autopilot_options"):
        members = {"__iter__": _iterate, "autopilot_options": options, "autopilot_state": None}
        loader.__class__ = type(cls.__name__, (cls,), {**members, "__module__": cls.__module__, "__doc__": cls.__doc__})


def _attach_result(make: Callable[[], Any], options: Options) -> Callable[[], Any]:
    def make_attached() -> Any:
        made = make()
        loader = getattr(made, "base_dataloader", made)
        if isinstance(loader, DataLoader):
            attach(loader, options)
        return made

    return make_attached


def explain_refusal(loader: DataLoader[Any], cls: Any) -> str:
    """Return why the workers of a loader of the user's class cannot change in an epoch; empty if they can."""
    if cls.__iter__ is not DataLoader.__iter__ or cls._get_iterator is not DataLoader._get_iterator:
        return f"{cls.__name__} iterates in its own way"
    if isinstance(loader.dataset, IterableDataset):
        return "an iterable dataset divides its samples among the workers"
    if not getattr(loader, "in_order", True):
        return "in_order=False returns batches in the order in which workers finish"
    if torch.are_deterministic_algorithms_enabled():
        return "torch.use_deterministic_algorithms asks for reproducible augmentations"
    if torch.get_default_device().type != "cpu":
        return f"torch.set_default_device has workers draw their seeds on {torch.get_default_device()}"
    if multiprocessing.current_process().daemon:
        return "a daemonic process, such as a worker, cannot start workers"
    if not loader.num_workers and not _may_start_workers():
        return (
            "the start method of processes is not fork, and the script would run again in each worker. Put its "
            'training in a function and call it under `if __name__ == "__main__":`'
        )
    return ""


def _may_start_workers() -> bool:
    """Return whether a process can be started without running the main module's training again."""
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    source = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
    if method == "fork" or not source.is_file():
        return True
    tests = [one.test for one in ast.parse(source.read_bytes()).body if isinstance(one, ast.If)]
    return any(isinstance(one, ast.Name) and one.id == "__name__" for test in tests for one in ast.walk(test))
