"""Is a ready loader a plain DataLoader, and if not: how is the user's own to be measured as it is?"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from torch.utils.data import DataLoader

from autotune.child.constructor_calls import LOADER_SETTINGS, ConstructorCall, ConstructorCalls, describe_class
from autotune.child.errors import name_error, shut_down_workers
from autotune.child.factory_calls import FactoryCall, MeasuredLoader
from autotune.child.loader import StoppableDataLoader
from autotune.config import DataLoaderSettings, LoaderConfig
from autotune.errors import UsageError
from autotune.settings import SETTINGS, SettingName

TELLING_METHODS: Final = (  # a class that has one of its own is made, or iterates, in another way than DataLoader
    "__init__",
    "__new__",
    "__iter__",
    "__next__",
    "__len__",
    "__getattribute__",
    "_get_iterator",
    "_index_sampler",
    "_auto_collation",
)
ITERATING_METHODS: Final = ("__iter__", "__next__", "_get_iterator", "_index_sampler")


@dataclass(frozen=True)
class OwnLoader:
    """How the user's own loader is measured.

    Attributes:
        call: Makes one with other settings.
        fixed: Settings that it does not let anybody change, with the values that it has.
        ends_with_sampler: Whether its epochs end when its sampler has no more. Those of a class that never restarts its
            workers do not: its sampler repeats for ever, and an epoch is left where it is.
        delivers_as_sampled: Whether it hands out the batches that its sampler asks for: not surely where it iterates in
            a way of its own, which may leave some out.
        takes_batch_size: Whether a function makes it, whose parameter sets the batch size, whatever makes the batches.
        cls: The class of it.
    """

    call: ConstructorCall | FactoryCall
    fixed: Mapping[SettingName, Any] = field(default_factory=dict)
    ends_with_sampler: bool = True
    delivers_as_sampled: bool = True
    takes_batch_size: bool | None = None  # None where its parts tell
    cls: type = DataLoader

    def make(self, settings: dict[str, Any]) -> MeasuredLoader:
        """Make one with these arguments of DataLoader."""
        loader = self.call.repeat(settings)
        loader.ends_with_sampler = self.ends_with_sampler
        loader.delivers_as_sampled = self.delivers_as_sampled
        return loader

    def read_given(self, name: str) -> Any:
        """Read what its maker was given by this name, or what was put in its place afterwards."""
        changed = self.call.changed if isinstance(self.call, ConstructorCall) else {}
        return changed.get(name, self.call.arguments.get(name))

    def collate_by(self, collate: Any) -> Self:
        """Give the same with another `collate_fn`."""
        call = replace(self.call, arguments={**self.call.arguments, "collate_fn": collate})
        if isinstance(call, ConstructorCall):
            kept = {name: value for name, value in call.changed.items() if name != "collate_fn"}
            call = replace(call, changed=kept)
        return replace(self, call=call)

    def describe(self) -> str:
        """Say that it is what is measured, and which settings it decides by itself."""
        decided = ", ".join(f"{name}={value}" for name, value in self.fixed.items())
        rest = f" It decides by itself: {decided}." if decided else ""
        left = "" if self.ends_with_sampler else " Long epochs cannot be ended early, and are left where they are."
        return f"What is measured is your own loader, {self.call.name}, made anew for each trial.{rest}{left}"


def adopt_loader(loader: DataLoader[Any], own: LoaderConfig, calls: ConstructorCalls, source: str) -> OwnLoader | None:
    """Find out how a ready loader is to be measured; None for as a plain one, which its attributes describe in full.

    Args:
        loader: The loader.
        own: Its settings.
        calls: How loaders were made while the user's factory ran.
        source: What made it, for messages.

    Raises:
        UsageError: Its class is no plain one, and cannot be made again with other settings.
    """
    methods = list_own_methods(type(loader))
    if not methods:
        return None
    name, call = describe_class(type(loader)), calls.find(loader)
    if call is None:
        raise UsageError(
            f"{source} returned a {name}, which has its own {', '.join(methods)}: a plain DataLoader in its place "
            "would not be what trains, and dltune did not see how it was made. Give a function that makes it of the "
            f"settings, with --loader, or have the factory call its class and return it as it is."
        )
    fixed = _find_fixed(call, own.dataloader)
    if "num_workers" in fixed:
        raise UsageError(
            f"{source} returned a {name}, which lets nobody set num_workers, neither dltune nor your training code"
            f"{_explain_refusal(call)}. "
            "Let its __init__ take num_workers, prefetch_factor, pin_memory and persistent_workers, or **kwargs, and "
            f"hand them on to DataLoader; or give a function that makes it of the settings, with --loader."
            f""
        )
    call = replace(call, fixed=frozenset(fixed))
    return OwnLoader(call, _read_values(fixed, own), *_look_at_iterating(call, methods), cls=type(loader))


def adopt_factory(call: FactoryCall, made: MeasuredLoader, own: LoaderConfig) -> OwnLoader:
    """Find out how what a function makes is to be measured; `made` and `own` are what it makes by itself."""
    fixed, takes_batch_size = _read_values(call.fixed, own), "batch_size" not in call.fixed
    if not isinstance(made, DataLoader):
        return OwnLoader(call, fixed, False, False, takes_batch_size, type(made.batches))
    look = _look_at_iterating(call, list_own_methods(type(made)))
    return OwnLoader(call, fixed, *look, takes_batch_size, type(made))


def list_own_methods(cls: type[DataLoader[Any]]) -> list[str]:
    """List the methods by which a class of loaders differs from DataLoader in how it is made or iterates."""
    below = itertools.takewhile(lambda base: base is not DataLoader, cls.__mro__)
    found = {name for base in below if base is not StoppableDataLoader for name in vars(base)}
    return [name for name in TELLING_METHODS if name in found]


def _read_values(names: Iterable[SettingName], own: LoaderConfig) -> dict[SettingName, Any]:
    return {name: SETTINGS[name].read(own) for name in names}


def _find_fixed(call: ConstructorCall, own: DataLoaderSettings) -> list[SettingName]:
    """Find the settings that a class does not take as they are given, by giving it another value of each."""
    others: dict[SettingName, Any] = {
        "num_workers": 2 if own.num_workers == 1 else 1,
        "prefetch_factor": (own.prefetch_factor or SETTINGS["prefetch_factor"].default) + 1,
        "pin_memory": not own.pin_memory,
        "persistent_workers": not own.persistent_workers,
        "in_order": not own.in_order,
    }
    if own.batch_size is not None:
        others["batch_size"] = own.batch_size + 1
    return [name for name in LOADER_SETTINGS if name in others and not _is_taken(call, name, others[name])]


def _explain_refusal(call: ConstructorCall) -> str:
    try:
        call.repeat({"num_workers": 1})
    except Exception as error:  # whatever its constructor says
        return f" ({name_error(error)})"
    return ""


def _is_taken(call: ConstructorCall, name: SettingName, value: Any) -> bool:
    try:
        loader = call.repeat({"num_workers": 1, name: value})
    except Exception:  # whatever its constructor says to a value that it does not want
        return False
    return bool(getattr(loader, name, None) == value)


def _look_at_iterating(call: ConstructorCall | FactoryCall, methods: Sequence[str]) -> tuple[bool, bool]:
    """Tell whether epochs end with their sampler, and whether what arrives is what it asked for."""
    ends = not set(ITERATING_METHODS) & set(methods) or _ends_with_sampler(call)
    return ends, ends and not set(methods) & {"__iter__", "__next__"}


def _ends_with_sampler(call: ConstructorCall | FactoryCall) -> bool:
    """Tell whether an epoch ends cleanly after one batch, loaded by one worker, when the sampler has no more.

    A dataset that fails here will fail in the trials, which name it.
    """
    loader = call.repeat({"num_workers": 1})
    loader.index_source.open(max_batches=1)
    try:
        return sum(1 for _ in itertools.islice(loader, 2)) == 1
    except Exception as error:  # of the dataset, or of an `__iter__` that goes on when there is nothing more
        shut_down_workers(error)
        return False
