"""Makes the user's own loader again with other settings, where a plain DataLoader would not be what trains.

The arguments of its constructor are noted while the user's factory runs; later the same class is called with them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

from torch.utils.data import DataLoader

from autotune.child.loader import StoppableDataLoader, make_stoppable
from autotune.errors import UsageError
from autotune.profiles.loaders import choose_arguments, list_parameters
from autotune.settings import SETTINGS, SettingName

LOADER_SETTINGS: Final[tuple[SettingName, ...]] = tuple(
    name for name in get_args(SettingName) if SETTINGS[name].section == "dataloader"
)
NEEDING_WORKERS: Final = (  # refused, or idle, without
    *(setting.name for setting in SETTINGS.values() if setting.needs == "num_workers"),
    "multiprocessing_context",
    "timeout",
)
SET_ONCE: Final = ("dataset", "sampler", "batch_sampler", "drop_last", "multiprocessing_context")  # or made anew


@dataclass(frozen=True)
class ConstructorCall:
    """A call by which a loader was made, to be repeated with other settings.

    Attributes:
        cls: The user's class.
        arguments: What it was given, by name.
        fixed: Settings that its class does not take, or makes something else of.
        changed: Attributes that were set on the loader after it was made, and go with what its class takes.
    """

    cls: type[DataLoader[Any]]
    arguments: Mapping[str, Any] = field(repr=False)
    fixed: frozenset[SettingName] = frozenset()
    changed: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The class, with its module."""
        return describe_class(self.cls)

    def repeat(self, settings: Mapping[str, Any]) -> StoppableDataLoader:
        """Make a loader of the same class, with these arguments of DataLoader instead of those it was given.

        Raises:
            UsageError: The class makes something else of them.
        """
        given = choose_arguments(self.cls, {name: settings[name] for name in settings if name not in self.fixed})
        kept = {name: value for name, value in self.arguments.items() if self._keeps(name, settings)}
        loader = make_stoppable(self.cls)(**{**kept, **given})
        for name, value in self.changed.items():
            if loader.num_workers or name not in NEEDING_WORKERS:
                setattr(loader, name, settings.get(name, value))
        check_settings(loader, given, self.name)
        return loader

    def _keeps(self, name: str, settings: Mapping[str, Any]) -> bool:
        """Tell whether an argument stays as it was given: what only workers have must go with them."""
        if name in NEEDING_WORKERS and not settings["num_workers"]:
            return False
        return name in self.fixed or name not in settings


class ConstructorCalls:
    """The calls of DataLoader's constructor, and of its subclasses', that were noted."""

    def __init__(self) -> None:
        self._noted: list[tuple[DataLoader[Any], type, tuple[Any, ...], dict[str, Any]]] = []
        self._made: dict[int, dict[str, Any]] = {}

    def note(self, loader: DataLoader[Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Remember by which arguments a loader is being made."""
        self._noted.append((loader, type(loader), arguments, named))

    def note_made(self, loader: DataLoader[Any]) -> None:
        """Remember what attributes a loader has now that its constructor is done."""
        self._made[id(loader)] = dict(vars(loader))

    def find(self, loader: DataLoader[Any]) -> ConstructorCall | None:
        """Give the call by which a loader was made; None where it was not seen, or its arguments have no names."""
        for noted, cls, arguments, named in self._noted:
            if noted is loader and type(loader) is cls and (arguments or named):
                call = _name_arguments(type(loader), arguments, named)
                return None if call is None else replace(call, changed=self._find_changed(loader))
        return None

    def _find_changed(self, loader: DataLoader[Any]) -> dict[str, Any]:
        """Find the attributes of what its constructor takes that are not what they were when it was done."""
        was = self._made.get(id(loader), vars(loader))
        taken = {*_list_names(type(loader)), *_list_names(DataLoader)} - {*LOADER_SETTINGS, *SET_ONCE}
        return {name: now for name, now in vars(loader).items() if name in taken and now is not was.get(name)}


@contextmanager
def note_constructor_calls() -> Iterator[ConstructorCalls]:
    """Note how DataLoaders are made until the end of the block, each by the arguments of its own class."""
    calls = ConstructorCalls()
    followed: set[type] = set()
    stack = ExitStack()

    def make(cls: type[DataLoader[Any]], *arguments: Any, **named: Any) -> DataLoader[Any]:
        loader: DataLoader[Any] = object.__new__(cls)
        calls.note(loader, arguments, named)
        if cls is not DataLoader and cls not in followed:
            followed.add(cls)
            stack.enter_context(_follow_init(cls, calls.note_made))
        return loader

    with stack, _replace_new(make):
        yield calls


@contextmanager
def _follow_init(cls: Any, note: Callable[[DataLoader[Any]], None]) -> Iterator[None]:
    """Have each loader of this very class noted when its constructor is done, until the end of the block."""
    own, init = vars(cls).get("__init__"), cls.__init__

    @functools.wraps(init)
    def make(loader: DataLoader[Any], *arguments: Any, **named: Any) -> None:
        init(loader, *arguments, **named)
        if type(loader) is cls:
            note(loader)

    cls.__init__ = make
    try:
        yield
    finally:
        if own is None:
            del cls.__init__
        else:
            cls.__init__ = own


@contextmanager
def make_loaders_stoppable() -> Iterator[None]:
    """Have every DataLoader that is made until the end of the block be one that can be ended early."""

    def make(cls: type[DataLoader[Any]], *_: Any, **__: Any) -> DataLoader[Any]:
        loader: DataLoader[Any] = object.__new__(make_stoppable(cls))
        return loader

    with _replace_new(make):
        yield


@contextmanager
def _replace_new(make: Callable[..., DataLoader[Any]]) -> Iterator[None]:
    """Put another `__new__` in force, which Python hands what the outermost `__init__` gets.

    Once set it cannot be taken away again: CPython keeps in mind that the class had one, and object's own then refuses
    arguments. So one that does nothing stays behind.
    """
    _set_new(make)
    try:
        yield
    finally:
        _set_new(lambda cls, *_, **__: object.__new__(cls))


def _set_new(make: Any) -> None:
    make.__signature__ = inspect.signature(DataLoader.__init__)  # as whoever asks the class for its own expects
    type.__setattr__(DataLoader, "__new__", staticmethod(make))


def check_settings(loader: DataLoader[Any], given: Mapping[str, Any], maker: str) -> None:
    """Refuse a loader that has other settings than its maker was given; raises UsageError."""
    for name in LOADER_SETTINGS:
        has = read_setting(loader, name)
        is_told = has is not None or (name != "batch_size" and hasattr(loader, name))  # batches may be made elsewhere
        is_capped = name == "num_workers" and 0 < (has or 0) < given.get(name, 0)  # in training, too
        if name in given and is_told and has != given[name] and not is_capped:
            raise UsageError(
                f"{maker} was given {name}={given[name]} and made a loader with {has}: it must hand it on."
            )


def read_setting(loader: DataLoader[Any], name: SettingName) -> Any:
    """Read a setting of a loader; its batch size may be that of its batch sampler."""
    value = getattr(loader, name, None)
    return getattr(loader.batch_sampler, name, None) if value is None and name == "batch_size" else value


def _name_arguments(
    cls: type[DataLoader[Any]], arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> ConstructorCall | None:
    """Give every argument its name; a constructor that names none hands them on to DataLoader in its order."""
    names = _list_positional(cls) or _list_positional(DataLoader)
    if len(arguments) > len(names):
        return None
    return ConstructorCall(cls, {**dict(zip(names, arguments, strict=False)), **named})


def _list_names(cls: type[DataLoader[Any]]) -> list[str]:
    return [one.name for one in list_parameters(cls)]


def _list_positional(cls: type[DataLoader[Any]]) -> list[str]:
    return [one.name for one in list_parameters(cls) if one.kind is one.POSITIONAL_OR_KEYWORD]


def describe_class(cls: type) -> str:
    """Name a class with its module."""
    return f"{cls.__module__}.{cls.__qualname__}"
