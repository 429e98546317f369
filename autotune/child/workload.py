"""Loads a workload: calls the user's factory, which returns a dataset, a loader, several of them or a data module."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import importlib.util
import inspect
import shlex
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, cast, get_args

from pydantic import ValidationError
from torch.multiprocessing import get_sharing_strategy
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from autotune.child.custom_loaders import (
    LOADER_SETTINGS,
    REMEDY,
    SETTABLE,
    CustomLoader,
    accepts,
    check_epochs,
    describe,
    list_overrides,
    name_type,
    read_setting,
    rebuild_by_constructor,
    record_call,
    replace_new,
)
from autotune.child.loader import IterableLoader, is_forking, read_length
from autotune.child.sample_counts import SampleCountTracker, count_samples
from autotune.config import DataLoaderSettings, LoaderConfig, ProcessSettings, SharingStrategy, StartMethod
from autotune.errors import UsageError
from autotune.profiles.loaders import WITHOUT_WORKERS, find_inner_loaders, list_parameters, read_signature, takes
from autotune.profiles.schema import Preparer
from autotune.request import Workload, WorkloadRequest, explain_invalid, split_import_string
from autotune.settings import SETTINGS, SettingName, config_from_values
from autotune.system.procfs import read_smaps

MAX_SPLITS: Final = 1000  # in a list; a longer one has samples


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedWorkload:
    """The user's pipeline, from which loaders are built."""

    parts: Workload  # the arguments of its loader that are not searched
    baseline: LoaderConfig | None = None  # settings of the ready DataLoader that the factory returned
    sample_counts: SampleCountTracker = dataclasses.field(default_factory=SampleCountTracker, compare=False)
    own: CustomLoader | None = None  # how a custom loader is made and measured; None for a plain DataLoader
    owner: Any = None  # the data module that returned the loader; it may own the files that the dataset reads
    prepared_by: Preparer | None = None  # what made the loader that the factory returned
    note: str | None = None  # what is measured, if that is not a plain DataLoader
    inherited_bytes: int = 0  # memory of this process before the user's code was imported

    @property
    def batches_are_external(self) -> bool:
        """Whether a function makes batches without samples or parts that could be inspected."""
        return self.own is not None and self.own.is_function and not self.parts.batched

    @property
    def fixed(self) -> Mapping[SettingName, Any]:
        """Settings that cannot be changed, with their values: a dataset may need to know its batch size."""
        fixed = {} if self.own is None else dict(self.own.fixed)
        size = read_attribute(self.parts.dataset, "batch_size")
        is_function = self.own is not None and self.own.is_function
        is_settable = is_function or read_attribute(self.parts.dataset, "set_batch_size") is not None
        if self.batching == "batch_size" and isinstance(size, int) and size > 0 and not is_settable:
            fixed["batch_size"] = size if self.baseline is None else self.baseline.dataloader.batch_size
        return fixed

    @property
    def kind(self) -> Literal["map", "iterable"]:
        """How samples are accessed."""
        return "iterable" if self.batches_are_external or isinstance(self.parts.dataset, IterableDataset) else "map"

    @property
    def batching(self) -> Literal["batch_size", "user"]:
        """Whether the batch size can be set."""
        if self.own is not None and self.own.is_function:
            return "user" if "batch_size" in self.own.fixed else "batch_size"
        return "user" if self.parts.batch_sampler is not None or not self.parts.batched else "batch_size"

    @property
    def expected_samples(self) -> int | None:
        """Samples of an epoch, the length of the sampler or the dataset; None if neither has one."""
        counted = self.parts.sampler if self.parts.sampler is not None else self.parts.dataset
        return None if self.batches_are_external else read_length(counted)

    @property
    def own_bytes(self) -> int:
        """Memory that this process has allocated since the user's code was imported."""
        return max(0, read_smaps("self")["Anonymous"] - self.inherited_bytes)

    @property
    def gives_loader(self) -> bool:
        """Whether the factory returned a plain DataLoader, or a Workload that has arguments of one."""
        usual = Workload(dataset=self.parts.dataset, multiprocessing_context=self.parts.multiprocessing_context)
        names = (one.name for one in dataclasses.fields(Workload))
        pairs = ((getattr(self.parts, name), getattr(usual, name)) for name in names)
        is_given = any(one is not other and (other is None or one != other) for one, other in pairs)
        return self.own is None and (self.baseline is not None or is_given)

    @property
    def forks_workers(self) -> bool:
        """Whether its workers are forked, and so inherit the memory and open files of the training process."""
        return is_forking(self.parts.multiprocessing_context)


def import_attribute(text: str, folder: Path = Path()) -> Any:
    """Import an attribute by its import string, or raise UsageError; errors of the module itself are not changed.

    Files are relative to `folder`, by default the current one, which the user's code may have changed since.
    """
    parts = split_import_string(text)
    if parts is None:
        raise UsageError(f"{text}: not of the form package.module:attribute or file.py:attribute.")
    place, attribute = parts
    module = import_script(folder / place) if place.endswith(".py") else _import_module(place, attribute)
    try:
        return attrgetter(attribute)(module)
    except AttributeError:
        names = [name for name, one in vars(module).items() if not isinstance(one, ModuleType)]
        close = difflib.get_close_matches(attribute, names)
        hint = "Define it at the top level of the module, not under `if __name__ == '__main__'`."
        hint = f"Did you mean {' or '.join(close)}?" if close else hint
        origin = getattr(module, "__file__", None) or "a namespace package"
        problem = f"{place} was imported from {origin} but has no {attribute!r}"
        raise UsageError(f"{text}: {problem}. {hint}") from None


def import_script(path: Path) -> ModuleType:
    """Import a script as a module of its name, by which spawned workers find it: its folder is first in `sys.path`."""
    file = path.resolve()
    name = file.stem
    if not file.is_file():
        raise UsageError(f"{file.name}: no such file in {file.parent}.")
    sys.path.insert(0, str(file.parent))
    known = sys.modules.get(name)
    if known is not None:
        if Path(getattr(known, "__file__", None) or "").resolve() == file:
            return known
        raise UsageError(f"{path}: another module is called {name}. Give the file another name.")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return sys.modules[name]  # which it may have replaced


def _import_module(name: str, attribute: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists; one that it imports does not
        problem = f"No module named {error.name!r}, neither in {Path.cwd()} nor installed"
        hint = f"If its file is elsewhere, pass the path, as in folder/{name.rpartition('.')[2]}.py:{attribute}."
        if error.name == name.partition(".")[0] and Path("src", error.name).is_dir():
            hint = "Its package is in src: install it (pip install -e .), or set PYTHONPATH=src."
        raise UsageError(f"{name}:{attribute}: {problem}. {hint}") from None


def load_workload(request: WorkloadRequest, ends_with_sampler: bool | None = None) -> LoadedWorkload:
    """Call the user's factory, or raise UsageError; `ends_with_sampler` is known if another process has called it."""
    inherited_bytes = read_smaps("self")["Anonymous"]
    loaded = (_load_function if request.is_loader else _load_dataset)(request, ends_with_sampler)
    loaded = dataclasses.replace(loaded, inherited_bytes=inherited_bytes)
    method, baseline = request.start_method, loaded.baseline
    if method is None:
        return loaded
    if baseline is not None and baseline.process.multiprocessing_context is None:
        process = baseline.process.model_copy(update={"multiprocessing_context": method})
        baseline = baseline.model_copy(update={"process": process})
    parts = dataclasses.replace(loaded.parts, multiprocessing_context=method)
    return dataclasses.replace(loaded, parts=parts, baseline=baseline)


def _load_dataset(request: WorkloadRequest, ends_with_sampler: bool | None) -> LoadedWorkload:
    source, owner = request.dataset, None
    with replace_new(record_call):
        made = import_attribute(source)
        if callable(made) and not isinstance(made, Workload | DataLoader | Dataset) and not _is_data_module(made):
            _check_arguments(made, request.dataset_args, source)
            made = made(**request.dataset_args)
        elif request.dataset_args:
            given = ", ".join(request.dataset_args)
            raise UsageError(f"--arg {given}: {source} is {describe(made)}, not a function with arguments.")
        if _is_data_module(made):
            owner, source = made, f"{source}: train_dataloader() of {describe(made)}"
            made.prepare_data()  # the calls of a Trainer before training
            made.setup(stage="fit")
            made = made.train_dataloader()
        made = choose_split(made, request.split, source)
    return dataclasses.replace(wrap_dataset(made, source, ends_with_sampler), owner=owner)


def _load_function(request: WorkloadRequest, ends_with_sampler: bool | None) -> LoadedWorkload:
    """Load a function of the settings; the loader of its default arguments is the baseline."""
    name, function, given = request.dataset, import_attribute(request.dataset), request.dataset_args
    if not callable(function):
        raise UsageError(f"--loader {name}: {describe(function)}, not a function that makes a loader.")
    if (method := request.start_method) is not None and not takes(function, "multiprocessing_context"):
        raise UsageError(
            f"--set multiprocessing_context={method}: {name} does not take it. Give it a parameter of this name, and "
            "pass it on to its loader."
        )
    defaults = {one.name: one.default for one in list_parameters(function)} | given
    required = {one: SETTINGS[one].recommended for one in SETTINGS if defaults.get(one) is inspect.Parameter.empty}
    arguments, defaults = {**given, **required}, defaults | required
    _check_arguments(function, arguments, name)

    @functools.wraps(function)
    def make(**named: Any) -> Any:
        made = function(**named)
        is_several = request.split is not None or isinstance(made, Mapping | list | tuple)
        return choose_split(made, request.split, name) if is_several else made

    fixed = [one for one in SETTABLE if one in given or not accepts(function, one)]
    own = CustomLoader(name, make, arguments, dict.fromkeys(fixed))
    made = own.make(required)
    if isinstance(made, DataLoader) and not any(accepts(function, one) for one in SETTABLE):
        raise UsageError(
            f"--loader {name}: it takes none of the settings that are searched. Give it parameters such as num_workers "
            f"and prefetch_factor, and pass them on to its loader; or tune the loader it returns: --dataset {name}."
        )
    known = {one: defaults[one] for one in LOADER_SETTINGS if type(defaults.get(one)) in (int, bool)}
    if isinstance(made, IterableLoader):
        is_asked = ends_with_sampler is None and "batch_size" not in {*fixed, *known}
        size = _find_batch_size(own) if is_asked else None  # later processes do not read the dataset
        usual = {one: setting.default for one, setting in SETTINGS.items()} | {"batch_size": size}
        parts, baseline = Workload(dataset=made.batches, batched=False), config_from_values(usual | known)
    else:
        parts, baseline = _take_apart(made)
        size = read_setting(made, "batch_size") or known.get("batch_size")
        dataloader = baseline.dataloader.model_copy(update={"batch_size": size})
        baseline = baseline.model_copy(update={"dataloader": dataloader})
    own = dataclasses.replace(own, fixed={one: SETTINGS[one].read(baseline) for one in fixed})
    own = check_epochs(own, made, ends_with_sampler)
    return LoadedWorkload(parts, baseline, own=own, note=own.describe())


def _find_batch_size(own: CustomLoader) -> int | None:
    """Return the samples in the first batch of a function's loader; None if there is none, or only with workers."""
    try:
        return next((count_samples(batch, None, unknown=0) for batch in own.make({"num_workers": 0})), 0) or None
    except Exception:  # of the user's code, which the profile reports
        return None


def _check_arguments(factory: Callable[..., Any], arguments: Mapping[str, Any], source: str) -> None:
    try:
        read_signature(factory).bind(**arguments)
    except ValueError:  # a compiled function has no signature
        return
    except TypeError as error:
        names = ", ".join(read_signature(factory).parameters) or "none"
        raise UsageError(
            f"{source}: {error}. Its arguments are {names}: pass them with --arg NAME=VALUE (JSON or a bare word), or "
            f"write a function that calls {source.partition(':')[2]}."
        ) from None


def take_share(loaded: LoadedWorkload) -> LoadedWorkload:
    """Return this rank's share of a plain dataset, as training code does, or Lightning for a plain loader."""
    parts = loaded.parts
    is_own = loaded.owner is None and (loaded.baseline is not None or parts.sampler is not None)
    is_divided = parts.batch_sampler is not None or isinstance(parts.sampler, DistributedSampler)
    if loaded.kind != "map" or loaded.own is not None or is_own or is_divided:
        return loaded
    shuffles = parts.shuffle is not False and not isinstance(parts.sampler, SequentialSampler)
    sampler: DistributedSampler[int] = DistributedSampler(parts.dataset, shuffle=shuffles)
    return dataclasses.replace(loaded, parts=dataclasses.replace(parts, sampler=sampler, shuffle=None))


def _is_data_module(made: Any) -> bool:
    """Return whether it has the hooks of Lightning's data modules, without importing Lightning."""
    hooks = ("prepare_data", "setup", "train_dataloader")
    return all(callable(getattr(type(made), hook, None)) for hook in hooks)  # a remote proxy has any attribute


def wrap_dataset(made: Any, source: str, ends: bool | None = None) -> LoadedWorkload:
    """Make a workload of a dataset, a DataLoader or a Workload; `source` is the factory, for messages."""
    if not isinstance(made, DataLoader):
        parts = made if isinstance(made, Workload) else Workload(dataset=made)
        _check_dataset(parts, source)
        return LoadedWorkload(parts)
    note: str | None = None
    prepared_by: Preparer | None = None
    while isinstance(inner := vars(made).get("base_dataloader"), DataLoader):  # of accelerate's DataLoaderShard
        outer = name_type(type(made))
        made, note = inner, note or f"Trials measure the DataLoader inside {outer}, which starts the workers and loads."
        prepared_by = "transformers" if "transformers.trainer" in sys.modules else "accelerate"
    parts, baseline = _take_apart(made, is_prepared=prepared_by is not None)
    own = rebuild_by_constructor(made, baseline, source, ends)
    if own is not None:  # its class may wrap its worker_init_fn, and does so again
        parts = dataclasses.replace(parts, worker_init_fn=own.arguments.get("worker_init_fn"))
        note = note or own.describe()
    return LoadedWorkload(parts, baseline, own=own, prepared_by=prepared_by, note=note)


def _check_dataset(parts: Workload, source: str) -> None:
    dataset: Any = parts.dataset
    is_stream, found = isinstance(dataset, IterableDataset), f"{source} returned {describe(dataset)}"
    if names := ", ".join(find_inner_loaders(dataset)):
        raise UsageError(f"{found}, which contains a DataLoader: {names}. Return one DataLoader, or {REMEDY}.")
    if _only_iterates(dataset):
        better = "Return the Dataset that it reads (an IterableDataset for a stream)"
        raise UsageError(f"{found}, which can only be iterated. {better}, or {REMEDY}.")
    if is_stream:
        return
    if list_splits(dataset):
        raise UsageError(f"{found} as one dataset. Return one of those that it contains.")
    is_ordered = parts.sampler is not None or parts.batch_sampler is not None  # then its length is not needed
    needed = ("__getitem__",) if is_ordered else ("__getitem__", "__len__")
    if isinstance(dataset, str | bytes | type) or not all(hasattr(dataset, name) for name in needed):
        raise UsageError(
            f"{found}, which is not a Dataset (with __getitem__ and __len__), an IterableDataset, a DataLoader, a "
            "Lightning data module or an autotune.Workload."
        )
    if not is_ordered and len(dataset) == 0:
        raise UsageError(f"{found} of length 0: there is nothing to load.")


def find_datasets(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yield a dataset and those within it, each once, with its shortest path."""
    waiting, seen = deque([("dataset", dataset)]), set[int]()
    while waiting:
        path, one = waiting.popleft()
        if id(one) in seen:  # one may hold itself
            continue
        seen.add(id(one))
        yield path, one
        held = getattr(one, "__dict__", {})
        if "dataset" in held:
            waiting.append((f"{path}.dataset", held["dataset"]))
        parts = held["datasets"] if isinstance(held.get("datasets"), list | tuple) else ()
        waiting.extend((f"{path}.datasets[{index}]", part) for index, part in enumerate(parts))


def read_attribute(one: Any, name: str, default: Any = None) -> Any:
    """Return an attribute of an object, or the default if it has none, or its property raises."""
    with suppress(Exception):
        return getattr(one, name)
    return default


def _only_iterates(entry: Any) -> bool:
    """Return whether an object can only be iterated, as loaders of other libraries; a set is part of a sample."""
    return hasattr(entry, "__iter__") and not isinstance(entry, type | Set) and not hasattr(entry, "__getitem__")


def choose_split(made: Any, split: str | None, source: str) -> Any:
    """Return one of several loaders or datasets by its name, or raise UsageError; anything else unchanged."""
    several = list_splits(made)
    if split is None and not several:
        return made
    found = f"{source} returned {describe(made)}"
    if not several:
        raise UsageError(f"--split {split}: {found}, not several loaders or datasets by name. Omit --split.")
    found = f"{found} with {', '.join(map(repr, several))}"
    if split is None:
        example = next((name for name in several if "train" in name), next(iter(several)))
        raise UsageError(f"{found}. Choose one with --split {shlex.quote(example)}.")
    if split not in several:
        raise UsageError(f"--split {split}: {found}. Choose one of these.")
    return several[split]


def list_splits(made: Any) -> dict[str, Any]:
    """Return the loaders or datasets of a collection by name or number; empty for one of them, as a list of samples."""
    if isinstance(made, DataLoader | Dataset | Workload):
        return {}
    entries = read_attribute(made, "iterables", made)  # of Lightning's CombinedLoader
    if isinstance(entries, list | tuple):
        entries = dict(enumerate(entries)) if len(entries) <= MAX_SPLITS else None
    if not isinstance(entries, Mapping):
        return {}
    named = {str(name): entry for name, entry in entries.items()}
    kinds = (DataLoader, Dataset, Workload)  # other libraries derive neither loaders nor datasets from torch's
    found = {
        name: entry
        for name, entry in named.items()
        if isinstance(entry, kinds) or hasattr(entry, "__getitems__") or _only_iterates(entry)
    }
    return found or (named if "train" in named else {})


def _take_apart(loader: DataLoader[Any], *, is_prepared: bool = False) -> tuple[Workload, LoaderConfig]:
    """Return the arguments of a loader that are not searched, and its settings.

    A loader that accelerate prepared has the batch size of the user in a batch sampler.
    """
    given: Any = loader
    if is_prepared and type(loader.batch_sampler) is BatchSampler and not list_overrides(type(loader)):
        given = loader.batch_sampler
    has_batches = given.batch_size is None and loader.batch_sampler is not None
    method = getattr(loader.multiprocessing_context, "get_start_method", lambda: None)()
    method = method if method in get_args(StartMethod) else None  # a context may have no processes
    names = ("dataset", "collate_fn", "worker_init_fn", "generator", "timeout")
    parts = Workload(
        **{name: getattr(loader, name) for name in names},
        drop_last=given.drop_last,
        sampler=None if has_batches or isinstance(loader.dataset, IterableDataset) else given.sampler,
        batch_sampler=loader.batch_sampler if has_batches else None,
        batched=loader.batch_sampler is not None or loader.batch_size is not None,
        multiprocessing_context=method,
    )
    values = {name: getattr(loader, name) for name in DataLoaderSettings.model_fields}
    values["batch_size"] = given.batch_size
    values |= {name: bool(values[name]) for name in ("pin_memory", "persistent_workers", "in_order")}  # None is False
    values |= {} if loader.num_workers else WITHOUT_WORKERS
    try:
        settings = DataLoaderSettings(**values)
    except ValidationError as error:
        path, reason = explain_invalid(error)
        name = ".".join(path) or "settings"
        raise UsageError(f"The DataLoader's {name}: {reason}. Construct it with another value.") from None
    strategy = cast("SharingStrategy", get_sharing_strategy())
    process = ProcessSettings(sharing_strategy=strategy, multiprocessing_context=method)
    return parts, LoaderConfig(dataloader=settings, process=process)
