"""Calls the user's own function with the settings: it may make a DataLoader, or anything that batches come from."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader

from autotune.child.constructor_calls import LOADER_SETTINGS, check_settings, make_loaders_stoppable
from autotune.child.foreign_loaders import describe, name_loaders
from autotune.child.loader import StoppableDataLoader, StoppableSampler
from autotune.child.splits import choose_loader
from autotune.errors import UsageError
from autotune.profiles.loaders import choose_arguments, list_parameters, takes
from autotune.settings import SETTINGS, SettingName


class ForeignLoader:
    """What can only be gone through: a loader of another library, or an iterator, which is made anew for each epoch.

    One that has a length is no mere iterator: it begins anew by itself, as Lightning's CombinedLoader does.

    Its epochs can be left, and not ended early; it has no sampler of torch's: samples are counted as they arrive.
    """

    ends_with_sampler = False
    delivers_as_sampled = False
    drop_last = False

    def __init__(self, make: Callable[[], Any], batches: Any, settings: Mapping[str, Any]) -> None:
        self._make = make
        self._is_new = True
        self.batches = batches
        self.batch_size: int | None = settings.get("batch_size")
        self.index_source = StoppableSampler(())

    def __iter__(self) -> Iterator[Any]:
        if not self._is_new and isinstance(self.batches, Iterator) and not hasattr(type(self.batches), "__len__"):
            self.batches = self._make()
        self._is_new = False
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)

    def open(self, max_batches: int | None = None, last_batch_samples: int | None = None) -> None:
        """Make ready for an epoch."""

    def close(self, epoch_batches: int | None) -> None:
        """Be told that the epoch is over; it is left where it is."""


MeasuredLoader = StoppableDataLoader | ForeignLoader


@dataclass(frozen=True)
class FactoryCall:
    """A call of the user's function, to be repeated with other settings.

    Attributes:
        name: Its import string.
        factory: The function.
        arguments: What it is given beside the settings.
        split: Name of the one to measure, where it makes several.
    """

    name: str
    factory: Callable[..., Any]
    arguments: Mapping[str, Any] = field(repr=False)
    split: str | None = None

    @property
    def fixed(self) -> frozenset[SettingName]:
        """Settings that it does not take, or that are among its arguments."""
        return frozenset(name for name in LOADER_SETTINGS if name in self.arguments or not takes(self.factory, name))

    @property
    def required(self) -> dict[str, Any]:
        """Settings that it must be given, at their usual values."""
        needed = {one.name for one in list_parameters(self.factory) if one.default is one.empty}
        return {name: SETTINGS[name].recommended for name in SETTINGS if name in needed and name not in self.arguments}

    def repeat(self, settings: dict[str, Any]) -> MeasuredLoader:
        """Have a loader made with these settings instead of its own.

        Raises:
            UsageError: It makes something else of them, or nothing that can be gone through.
        """
        asked = self.required | settings
        named = {
            *LOADER_SETTINGS,
            *(one.name for one in list_parameters(self.factory)),
        }  # more would meet what it sets itself
        wanted = {name: asked[name] for name in asked if name in named and name not in self.fixed}
        given = choose_arguments(self.factory, wanted)

        def make() -> Any:
            with make_loaders_stoppable():
                made = self.factory(**{**self.arguments, **given})
            return choose_loader(made, self.split, self.name)

        made = make()
        if isinstance(made, DataLoader):
            check_settings(made, given, self.name)
        if isinstance(made, StoppableDataLoader):
            return made
        if isinstance(made, Mapping | list | tuple | str) or not hasattr(made, "__iter__"):
            raise UsageError(f"{self.name} returned {describe(made)}{name_loaders(made)}. Return one loader.")
        return ForeignLoader(make, made, wanted)


def check_arguments(factory: Any, given: Collection[str], source: str) -> None:
    """Refuse what a factory does not take, and to call it without what it needs; what is none is not looked at.

    Raises:
        UsageError: The message names the arguments.
    """
    if not callable(factory):
        return
    try:
        parameters = list_parameters(factory)
    except (TypeError, ValueError):  # one that is compiled, say, does not tell
        return
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    for name in given:
        if not takes(factory, name):
            raise UsageError(f"--arg {name}: {source} takes no such argument{_describe(name, named)}")
    missing = [one.name for one in named if one.default is one.empty and one.name not in given]
    if missing:
        options = " ".join(f"--arg {name}=..." for name in missing)
        raise UsageError(
            f"{source} must be given {' and '.join(missing)}: {options} (JSON or a bare word). What JSON cannot say "
            f"is made by a function of your own that calls {source.partition(':')[2]}."
        )


def _describe(name: str, named: Collection[inspect.Parameter]) -> str:
    names = [one.name for one in named]
    close = difflib.get_close_matches(name, names, n=1)
    return f". Is {close[0]} meant?" if close else f"; it takes {', '.join(names) or 'none'}."
