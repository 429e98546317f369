"""Custom loaders: subclasses of DataLoader, and functions of the settings that return any loader.

A subclass that changes how loaders are built or iterate is rebuilt by its constructor, with the arguments recorded
while the user's factory ran. A setting can be changed if the signature accepts it.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from torch.utils.data import DataLoader

from autotune.child.errors import shut_down_workers
from autotune.child.loader import IterableLoader, MeasuredLoader, StoppableDataLoader, make_stoppable
from autotune.config import DataLoaderSettings, LoaderConfig
from autotune.errors import UsageError
from autotune.profiles.loaders import NEEDS_WORKERS, choose_arguments, list_parameters, takes
from autotune.settings import SETTINGS, SettingName

LOADER_SETTINGS: Final = cast("tuple[SettingName, ...]", tuple(DataLoaderSettings.model_fields))
SETTABLE: Final[tuple[SettingName, ...]] = (*LOADER_SETTINGS, "worker_threads")
LOOPS: Final = ("__iter__", "__next__")
ITERATORS: Final = (*LOOPS, "_get_iterator", "_index_sampler")
OVERRIDES: Final = ("__init__", "__new__", *ITERATORS, "__len__", "__getattribute__", "_auto_collation")
REMEDY: Final = "pass a function of the settings that makes it, with --loader"


@dataclass(frozen=True)
class CustomLoader:
    """How a custom loader is made with other settings, and measured."""

    name: str  # qualified name of its class, or import string of the function that makes it
    maker: Callable[..., Any]  # the class or function
    arguments: Mapping[str, Any]  # besides the settings, by name
    fixed: Mapping[SettingName, Any]  # settings that are not accepted, with their values
    ends_with_sampler: bool = True  # whether an epoch ends when its sampler does; not if its workers never restart
    delivers_as_sampled: bool = True  # whether the batches that the sampler requests arrive; its own loop may drop some

    @property
    def is_function(self) -> bool:
        """Whether a function makes it."""
        return not isinstance(self.maker, type)

    def make(self, settings: Mapping[str, Any]) -> MeasuredLoader:
        """Make the loader with these arguments of DataLoader, or raise UsageError."""
        wanted = {name: value for name, value in settings.items() if name not in self.fixed}
        given = choose_arguments(self.maker, wanted)
        dropped = () if self.is_function or settings["num_workers"] else NEEDS_WORKERS
        arguments = {name: value for name, value in self.arguments.items() if name not in dropped} | given

        def make() -> Any:
            with replace_new(lambda cls, *_, **__: object.__new__(make_stoppable(cls))):
                return self.maker(**arguments)

        try:
            made = make()
        except TypeError as error:
            if self.is_function:
                raise
            raise UsageError(f"{self.name} failed with {', '.join(given)}: {error}. Instead, {REMEDY}.") from error
        if isinstance(made, DataLoader):
            check_settings(made, given, self.name)
        if isinstance(made, StoppableDataLoader):
            made.ends_with_sampler, made.delivers_as_sampled = self.ends_with_sampler, self.delivers_as_sampled
            return made
        if isinstance(made, Mapping | list | tuple | str) or not hasattr(made, "__iter__"):
            raise UsageError(f"{self.name} returned {describe(made)}. Return one loader.")
        return IterableLoader(make, made, wanted.get("batch_size"))

    def describe(self) -> str:
        """Describe what is measured, and which settings it does not accept."""
        values = ", ".join(f"{name}={value}" for name, value in self.fixed.items())
        fixed = f" Settings that it does not accept: {values}." if values else ""
        long = "" if self.ends_with_sampler else " Its long epochs are abandoned, since they cannot be ended early."
        return f"Each trial measures your own loader, {self.name}.{fixed}{long}"


def record_call(cls: type[DataLoader[Any]], *arguments: Any, **named: Any) -> DataLoader[Any]:
    """Return a new loader that holds the arguments of its constructor."""
    loader: DataLoader[Any] = object.__new__(cls)
    vars(loader)["_constructor_call"] = cls, arguments, named
    return loader


@contextmanager
def replace_new(make: Callable[..., Any]) -> Iterator[None]:
    """Replace `DataLoader.__new__`, which Python calls with the arguments of the outermost `__init__`.

    It cannot be removed again: CPython remembers that the class had one, and object's own then refuses arguments. So a
    plain one remains.
    """

    def set_new(new: Any) -> None:
        new.__signature__ = inspect.signature(DataLoader.__init__)  # of the class, for code that inspects it
        type.__setattr__(DataLoader, "__new__", staticmethod(new))

    set_new(make)
    try:
        yield
    finally:
        set_new(lambda cls, *_, **__: object.__new__(cls))


def rebuild_by_constructor(
    made: DataLoader[Any], baseline: LoaderConfig, source: str, ends: bool | None
) -> CustomLoader | None:
    """Return how to rebuild a loader, or raise UsageError; None for a plain one, whose attributes describe it in full.

    `source` is the factory, for messages; `ends` is whether epochs end with the sampler, None to find out.
    """
    cls, methods = type(made), list_overrides(type(made))
    if not methods:
        return None
    found = f"{source} returned {describe(made)}"
    if hasattr(cls, "autopilot_options"):
        raise UsageError(f"{source} returned a loader that autotune.autopilot tunes: return the loader itself.")
    arguments = _find_arguments(made)
    if arguments is None:
        raise UsageError(
            f"{found}, which overrides {', '.join(methods)}, and dltune did not see its constructor "
            f"call. Return the loader as its class makes it, or {REMEDY}."
        )
    is_settable = {one: accepts(cls, one) for one in SETTABLE}
    if not is_settable["num_workers"]:
        raise UsageError(
            f"{found}, whose __init__ does not accept num_workers. Let it accept the settings of "
            f"DataLoader, or **kwargs, and pass them on to DataLoader; or {REMEDY}."
        )
    is_settable["batch_size"] |= baseline.dataloader.batch_size is None  # a batch sampler sets it
    fixed = {one: SETTINGS[one].read(baseline) for one in SETTABLE if not is_settable[one]}
    return check_epochs(CustomLoader(name_type(cls), cls, arguments, fixed), made, ends)


def accepts(maker: Callable[..., Any], setting: SettingName) -> bool:
    """Return whether a loader class or function accepts a setting; threads of workers are limited by a function."""
    return takes(maker, "worker_init_fn" if setting == "worker_threads" else setting)


def list_overrides(cls: type) -> list[str]:
    """Return the methods by which a class of loaders is built, or iterates, in another way than DataLoader."""
    own = itertools.takewhile(lambda base: base is not DataLoader, cls.__mro__)
    found = {name for base in own if base is not StoppableDataLoader for name in vars(base)}
    return [name for name in OVERRIDES if name in found]


def _find_arguments(loader: DataLoader[Any]) -> dict[str, Any] | None:
    """Return the arguments of a loader's constructor by name; None if unknown, or if some have no name."""
    cls, arguments, named = vars(loader).get("_constructor_call", (None, (), {}))
    parameters = list_parameters(type(loader)) + list_parameters(DataLoader)  # *args are assumed to be passed on
    names = dict.fromkeys(one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD)
    if cls is not type(loader) or not (arguments or named) or len(arguments) > len(names):
        return None
    return {**dict(zip(names, arguments, strict=False)), **named}


def check_epochs(own: CustomLoader, made: Any, ends: bool | None) -> CustomLoader:
    """Return how a loader like `made` is measured; if `ends` is not known, one batch of one worker shows it."""
    methods = {*list_overrides(type(made))}
    if isinstance(made, DataLoader) and methods.isdisjoint(ITERATORS):
        return own
    ends = ends if isinstance(made, DataLoader) else False
    if ends is None:
        loader = own.make({"num_workers": 1})
        loader.index_source.open(max_batches=1)
        try:
            ends = sum(1 for _ in itertools.islice(loader, 2)) == 1
        except Exception as error:  # of an `__iter__` that does not expect the end, or of the dataset, as in the trials
            ends = False
            shut_down_workers(error)
    return replace(own, ends_with_sampler=ends, delivers_as_sampled=ends and methods.isdisjoint(LOOPS))


def check_settings(loader: DataLoader[Any], given: Mapping[str, Any], maker: str) -> None:
    """Raise UsageError if a loader has other settings than its class or function was given."""
    for name in LOADER_SETTINGS:
        has = read_setting(loader, name)
        is_unknown = name not in given or (has is None and name == "batch_size")  # the dataset may make batches
        is_capped = name == "num_workers" and 0 < (has or 0) < given.get(name, 0)  # in training, too
        if not (is_unknown or is_capped or has == given[name]):
            raise UsageError(
                f"{maker} was given {name}={given[name]} and made a loader with {has}. Pass {name} on to DataLoader, "
                f"or {REMEDY}."
            )


def read_setting(loader: DataLoader[Any], name: SettingName) -> Any:
    """Read a setting of a loader; its batch size may be that of its batch sampler."""
    value = getattr(loader, name, None)
    return getattr(loader.batch_sampler, name, None) if value is None and name == "batch_size" else value


def describe(made: Any) -> str:
    """Name the type of an object, as in `a datasets.Dataset`."""
    name = name_type(type(made))
    return "None" if made is None else f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def name_type(cls: type) -> str:
    """Return the name of a type, with its module unless it is built in."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
