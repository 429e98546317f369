"""`autotune.autopilot`: attaches the autopilot to the loaders of PyTorch, Lightning, transformers and accelerate."""

from __future__ import annotations

import ast
import copyreg
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from autotune.errors import UsageError
from autotune.online.autopilot import Autopilot, Options, Stats
from autotune.online.group import defer_signals
from autotune.online.worker import describe_error
from autotune.system.software import MAX_TMPDIR_BYTES, find_tmpdir, read_start_method_in_force

Target = TypeVar("Target")
SWITCH: Final = "DLTUNE_AUTOPILOT"
CHOOSERS: Final[list[Callable[[Any, Callable[[], Autopilot]], Autopilot]]] = []  # of the state of a loader: a new one?
_METHODS: Final = ("train_dataloader", "get_train_dataloader")  # of Lightning, and of transformers


def _iterate(loader: Any) -> Iterator[Any]:
    """Start an epoch of a tuned loader; its class has this function as `__iter__`."""
    state: Autopilot | None = loader.autopilot_state
    is_nested = get_worker_info() is not None  # within a dataset, in a worker, which starts no workers
    is_nested |= state is not None and state.process != os.getpid()  # in a process that the script has forked
    reason = "" if state or is_nested else explain_refusal(loader) or make_state(loader)
    if reason or is_nested:
        if reason and not CHOOSERS:  # else `dltune run` says it
            loader.autopilot_options.show(f"not tuned: {reason}.")
        detach(loader)
        return iter(loader)
    made: Autopilot = loader.autopilot_state
    return made.start_epoch(loader)


@defer_signals()
def make_state(loader: Any) -> str:
    """Make the state of a loader to which the autopilot is attached; return why that failed."""
    make = partial(Autopilot, loader, loader.autopilot_options)
    try:
        loader.autopilot_state = CHOOSERS[-1](loader, make) if CHOOSERS else make()
    except Exception as error:  # such as a /dev/shm that is read-only; training goes on
        return describe_error(error)
    return ""


def autopilot(
    target: Target,
    profile: str | Path | None = "dltune.json",
    *,
    max_workers: int | None = None,
    max_memory: str = "80%",
    on_stats: Callable[[Stats], object] | None = None,
    quiet: bool = False,
) -> Target:
    """Tune `num_workers` and `prefetch_factor` of a DataLoader in the training run; samples keep their order.

    `DLTUNE_AUTOPILOT=never` in the environment switches it off.

    Args:
        target: A DataLoader, also one prepared by accelerate; a Lightning module or data module; or a transformers
            Trainer.
        profile: The tuned file in which the result is saved, and with which the next run starts; None for no file.
        max_workers: The most workers; by default 64, or 2 per CPU of this process if that is more or if workers are
            not forked.
        max_memory: Host memory for added workers: a share of what is available, such as `80%`, or a size.
        on_stats: Is called after each window with `data/batches_per_second`, `data/wait_share` (0 to 1) and
            `data/num_workers`; such as `wandb.log`. If it fails, it is not called again.
        quiet: Whether to print nothing.

    Returns:
        The target itself.

    Raises:
        UsageError: The target has no training loader, an option is not valid, or DLTUNE_AUTOPILOT is unknown.
    """
    options = Options(profile, max_workers, max_memory, on_stats, quiet)
    if is_switched_off() or _attach_all(target, options):
        return target
    for name in _METHODS:
        if callable(make := getattr(target, name, None)):
            setattr(target, name, partial(_make_attached, make, options))
            return target
    raise UsageError(
        f"{type(target).__name__} has no training loader: pass a DataLoader, a Lightning module or data module, or a "
        "transformers Trainer."
    )


def is_switched_off() -> bool:
    """Return whether the environment switches the autopilot off.

    Raises:
        UsageError: The variable has an unknown value.
    """
    if (switch := os.environ.get(SWITCH, "")) not in ("", "never"):
        raise UsageError(f"{SWITCH}={switch!r} is not valid: set it to 'never', or unset it.")
    return bool(switch)


def attach(loader: Any, options: Options) -> str:
    """Give a loader a class with the autopilot; libraries that copy the loader by its class copy it, too.

    Returns:
        Why that failed: the user's class iterates its own way, or cannot be derived from. Empty if it did not.
    """
    cls = type(loader)
    if hasattr(cls, "autopilot_options"):
        loader.autopilot_options = options
        if loader.autopilot_state is not None:
            loader.autopilot_state.options = options
        return ""
    for name in ("__iter__", "_get_iterator"):
        if getattr(cls, name) is not getattr(DataLoader, name):
            return f"{cls.__name__} overrides {name}"
    members: dict[str, Any] = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    members |= {"__iter__": _iterate, "__reduce_ex__": _reduce, "_iterator": property(_find_workers, _end_workers)}
    members |= {"autopilot_options": options, "autopilot_state": None}
    try:
        loader.__class__ = type(cls.__name__, (cls,), members)
    except Exception as error:  # of its metaclass, or of __init_subclass__ or __setattr__
        return f"{cls.__name__} cannot be derived from ({describe_error(error)})"
    return ""


def detach(loader: Any) -> None:
    """Give a loader its own class back, if it has another one."""
    if hasattr(cls := type(loader), "autopilot_options"):
        object.__setattr__(loader, "__class__", cls.__bases__[0])
        vars(loader).setdefault("_iterator", None)  # which a state has removed


def _find_workers(loader: Any) -> Autopilot | None:
    """Return what has the persistent workers of a loader between two epochs, in place of torch's iterator."""
    return loader.autopilot_state if loader.persistent_workers else None


def _end_workers(loader: Any, _iterator: None) -> None:
    """End them, as Lightning asks for after training."""
    if loader.autopilot_state is not None:
        loader.autopilot_state.end_workers()


def _reduce(loader: Any, _protocol: int) -> tuple[Any, ...]:
    """Copy and pickle a loader by the user's class and its attributes; the copy is tuned from its start."""
    attributes = loader.__getstate__()
    if isinstance(attributes, dict):
        attributes = {"_iterator": None} | {name: one for name, one in attributes.items() if name != "autopilot_state"}
    if loader.autopilot_options.place:  # `dltune run` tunes every loader: its pickle needs no dltune
        return copyreg._reconstructor, (type(loader).__bases__[0], object, None), attributes  # type: ignore[attr-defined]
    return _remake, (type(loader).__bases__[0], loader.autopilot_options), attributes


def _remake(cls: type[DataLoader[Any]], options: Options) -> DataLoader[Any]:
    loader = cls.__new__(cls)
    attach(loader, options)
    return loader


def _make_attached(make: Callable[[], Any], options: Options) -> Any:
    made = make()
    if not _attach_all(made, options):
        options.show(f"not tuned: {type(made).__name__} is not a DataLoader.")
    return made


def _attach_all(given: Any, options: Options) -> bool:
    """Attach the autopilot to a loader, or to each one in a collection of them; return whether there is one."""
    given = getattr(given, "iterables", given)  # of Lightning's CombinedLoader
    if isinstance(given, Mapping | list | tuple):
        return sum(_attach_all(one, options) for one in (given.values() if isinstance(given, Mapping) else given)) > 0
    loader = getattr(given, "base_dataloader", given)  # of accelerate
    if isinstance(loader, DataLoader) and (reason := attach(loader, options)):
        options.show(f"not tuned: {reason}.")
    return isinstance(loader, DataLoader)


def explain_refusal(loader: DataLoader[Any]) -> str:
    """Return why the workers of a loader cannot change in an epoch; empty if they can."""
    if isinstance(loader.dataset, IterableDataset):
        return "an IterableDataset divides its samples among the workers"
    if not getattr(loader, "in_order", True):
        return "in_order=False returns batches in the order in which workers finish"
    samplers = loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)
    if any(hasattr(type(one), "state_dict") for one in samplers):
        return "batches are drawn ahead, so a checkpoint of the sampler would have a later position"
    if torch.are_deterministic_algorithms_enabled():
        return "torch.use_deterministic_algorithms asks for reproducible augmentations"
    if torch.get_default_device().type != "cpu":
        return f"torch.set_default_device has workers draw their seeds on {torch.get_default_device()}"
    if multiprocessing.current_process().daemon:
        return "a daemonic process, such as a worker, cannot start workers"
    if not loader.num_workers and len(os.fsencode(find_tmpdir())) > MAX_TMPDIR_BYTES:
        return f"workers hang if the path of TMPDIR is longer than {MAX_TMPDIR_BYTES} bytes: export TMPDIR=/tmp"
    if not loader.num_workers and not _may_start_workers():
        return (
            "the start method of processes is not fork, and the script would run again in each worker. Put its "
            'training in a function and call it under `if __name__ == "__main__":`'
        )
    return ""


def _may_start_workers() -> bool:
    """Return whether a process can be started without running the main module's training again."""
    source = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
    if read_start_method_in_force() == "fork" or not source.is_file():
        return True
    try:
        tests = [one.test for one in ast.parse(source.read_bytes()).body if isinstance(one, ast.If)]
    except (SyntaxError, ValueError):  # of compiled code
        return False
    return any(isinstance(one, ast.Name) and one.id == "__name__" for test in tests for one in ast.walk(test))
