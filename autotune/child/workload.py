"""Calls the user's dataset factory, and makes one workload of whatever it returned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, cast

from pydantic import ValidationError
from torch.multiprocessing import get_sharing_strategy
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler, default_collate
from torch.utils.data.distributed import DistributedSampler

from autotune.child.constructor_calls import LOADER_SETTINGS, ConstructorCalls, note_constructor_calls, read_setting
from autotune.child.custom_loaders import OwnLoader, adopt_factory, adopt_loader
from autotune.child.factory_calls import FactoryCall, ForeignLoader, check_arguments
from autotune.child.foreign_loaders import describe, name_loaders, refuse_foreign_loader, refuse_loader_within
from autotune.child.importing import import_attribute
from autotune.child.ready_loaders import read_start_method, take_apart
from autotune.child.sample_checks import SampleCountTracker
from autotune.child.splits import choose_split, list_splits
from autotune.config import DataLoaderSettings, LoaderConfig, ProcessSettings, SharingStrategy, StartMethod
from autotune.errors import UsageError
from autotune.profiles.loaders import list_parameters
from autotune.request import Workload, WorkloadRequest
from autotune.settings import SettingName, config_from_values, setting_values
from autotune.system.software import read_start_method_in_force


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedWorkload:
    """The user's pipeline, ready to be given loaders.

    Attributes:
        parts: What stays as it is.
        baseline: Settings of the ready DataLoader the factory returned; None for anything else.
        sample_counts: What was seen of its size.
        own: How the user's own class of loaders is made and measured; None for a plain DataLoader.
        owner: The data module that made the loader; kept, since it may hold the folder that its dataset reads.
    """

    parts: Workload
    baseline: LoaderConfig | None = None
    sample_counts: SampleCountTracker = dataclasses.field(default_factory=SampleCountTracker, compare=False)
    own: OwnLoader | None = None
    owner: Any = None

    @property
    def is_opaque(self) -> bool:
        """Whether its parts cannot be looked at: a function makes it, and it is handed batches, not samples."""
        return self.own is not None and self.own.takes_batch_size is not None and not self.parts.batched

    @property
    def fixed(self) -> Mapping[SettingName, Any]:
        """Settings that are not dltune's to change, with the values that they have.

        A dataset that shares itself out by a batch size of its own must be told of another one by who knows it.
        """
        fixed = {} if self.own is None else dict(self.own.fixed)
        size = getattr(self.parts.dataset, "batch_size", None)
        is_told = hasattr(self.parts.dataset, "set_batch_size") or (self.own is not None and self.own.takes_batch_size)
        if self.batching == "batch_size" and isinstance(size, int) and size > 0 and not is_told:
            fixed["batch_size"] = size if self.baseline is None else self.baseline.dataloader.batch_size
        return fixed

    @property
    def kind(self) -> Literal["map", "iterable"]:
        """How samples are reached."""
        return "iterable" if self.is_opaque or isinstance(self.parts.dataset, IterableDataset) else "map"

    @property
    def batching(self) -> Literal["batch_size", "user"]:
        """Whether the batch size can be set."""
        if self.own is not None and self.own.takes_batch_size is not None:
            return "batch_size" if self.own.takes_batch_size else "user"
        return "user" if self.parts.batch_sampler is not None or not self.parts.batched else "batch_size"

    @property
    def fetches_batches(self) -> bool:
        """Whether the dataset fetches whole batches, whose first dimension counts their samples by torch's collate."""
        is_stacked = self.batching == "batch_size" and self.parts.collate_fn in (None, default_collate)
        return is_stacked and hasattr(self.parts.dataset, "__getitems__")

    @property
    def promised_samples(self) -> int | None:
        """Samples of an epoch, as the sampler or the dataset says; None where neither does."""
        counted = self.parts.sampler if self.parts.sampler is not None else self.parts.dataset
        try:
            if self.is_opaque:
                return None  # its length counts batches
            return len(counted)  # type: ignore[arg-type]  # many samplers and iterable datasets have no length
        except (TypeError, NotImplementedError):
            return None

    @property
    def start_method(self) -> StartMethod | None:
        """How its workers are to start; None where it leaves that to the interpreter."""
        return cast("StartMethod | None", self.parts.multiprocessing_context)

    @property
    def forks_workers(self) -> bool:
        """Whether its workers are forked, and so inherit what the training process has in memory or open."""
        return (self.start_method or read_start_method_in_force()) == "fork"

    def start_workers_by(self, method: StartMethod) -> LoadedWorkload:
        """Give the same, and the baseline where it leaves that open, with another start method of workers."""
        baseline = self.baseline
        if baseline is not None and baseline.process.multiprocessing_context is None:
            process = baseline.process.model_copy(update={"multiprocessing_context": method})
            baseline = baseline.model_copy(update={"process": process})
        parts = dataclasses.replace(self.parts, multiprocessing_context=method)
        return dataclasses.replace(self, parts=parts, baseline=baseline)


def load_workload(request: WorkloadRequest) -> LoadedWorkload:
    """Import and call the user's dataset factory, and apply the collate function and start method of the request."""
    if request.is_loader and request.collate is not None:
        raise UsageError("--collate: a function for --loader makes the whole loader; give the collate function there.")
    loaded = _load_factory(request) if request.is_loader else _load_dataset(request)
    return loaded if request.start_method is None else loaded.start_workers_by(request.start_method)


def _load_dataset(request: WorkloadRequest) -> LoadedWorkload:
    with note_constructor_calls() as calls:
        factory = import_attribute(request.dataset)
        is_made = isinstance(factory, Workload | DataLoader | Dataset) or _is_data_module(factory)
        check_arguments(None if is_made else factory, request.dataset_args, request.dataset)
        made = factory(**request.dataset_args) if callable(factory) and not is_made else factory
        owner, chosen = _choose(made, request)
    loaded = dataclasses.replace(wrap_dataset(chosen, request.dataset, calls), owner=owner)
    if request.collate is None:
        return loaded
    collate = import_attribute(request.collate)
    own = None if loaded.own is None else loaded.own.collate_by(collate)
    return dataclasses.replace(loaded, parts=dataclasses.replace(loaded.parts, collate_fn=collate), own=own)


def _load_factory(request: WorkloadRequest) -> LoadedWorkload:
    """Have the user's function make a loader by itself, which is the baseline."""
    factory = import_attribute(request.dataset)
    if not callable(factory):
        raise UsageError(f"--loader {request.dataset}: a {type(factory).__name__}, not a function that makes a loader.")
    call = FactoryCall(request.dataset, factory, request.dataset_args, request.split)
    check_arguments(factory, {**call.arguments, **call.required}, request.dataset)
    made, defaults = call.repeat({}), _read_defaults(call)
    if isinstance(made, ForeignLoader):
        parts = Workload(dataset=cast("Any", made.batches), batched=False)
        return LoadedWorkload(parts=parts, baseline=defaults, own=adopt_factory(call, made, defaults))
    baseline, size = _read_settings(made), read_setting(made, "batch_size") or defaults.dataloader.batch_size
    baseline = baseline.model_copy(update={"dataloader": baseline.dataloader.model_copy(update={"batch_size": size})})
    return LoadedWorkload(take_apart(made), baseline, own=adopt_factory(call, made, baseline))


def take_share(loaded: LoadedWorkload) -> LoadedWorkload:
    """Return this rank's share of a plain dataset, as training code that makes the loader does.

    Lightning does the same with a plain loader of a data module. Another ready loader, a sampler and an iterable
    dataset divide the data themselves, or train on all of it.
    """
    parts = loaded.parts
    if loaded.kind != "map" or loaded.own is not None or parts.batch_sampler is not None:
        return loaded
    if isinstance(parts.sampler, DistributedSampler):
        return loaded
    if loaded.owner is None and (loaded.baseline is not None or parts.sampler is not None):
        return loaded
    shuffles = parts.shuffle is not False and not isinstance(parts.sampler, SequentialSampler)
    sampler: DistributedSampler[int] = DistributedSampler(parts.dataset, shuffle=shuffles)
    return dataclasses.replace(loaded, parts=dataclasses.replace(parts, sampler=sampler, shuffle=None))


def _read_defaults(call: FactoryCall) -> LoaderConfig:
    """Read the settings by which a function makes a loader that does not tell them: its arguments and its defaults."""
    values = {one.name: one.default for one in list_parameters(call.factory)} | call.required | dict(call.arguments)
    known: dict[str, Any] = {name: values[name] for name in LOADER_SETTINGS if type(values.get(name)) in (int, bool)}
    usual = setting_values(LoaderConfig(dataloader=DataLoaderSettings(batch_size=None)))
    try:
        return config_from_values({**usual, **known})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise UsageError(f"--loader {call.name}: its default {problem['input']} is no setting of a loader.") from None


def _is_data_module(made: Any) -> bool:
    """Tell whether it has the hooks by which Lightning's modules hand out data, without importing Lightning."""
    hooks = ("prepare_data", "setup", "train_dataloader")
    return not isinstance(made, type) and all(callable(getattr(made, hook, None)) for hook in hooks)


def wrap_dataset(made: Any, source: str, calls: ConstructorCalls | None = None) -> LoadedWorkload:
    """Make a workload of a dataset, a DataLoader or a Workload.

    `source` is for messages; `calls` says how loaders were made.
    """
    if isinstance(made, DataLoader):
        return _adopt(made, source, calls or ConstructorCalls())
    parts = made if isinstance(made, Workload) else Workload(dataset=made)
    return LoadedWorkload(parts=_check_dataset(parts, source))


def _adopt(loader: DataLoader[Any], source: str, calls: ConstructorCalls) -> LoadedWorkload:
    baseline, parts = _read_settings(loader), take_apart(loader)
    own = adopt_loader(loader, baseline, calls, source)
    if own is not None:  # what its class makes of a worker_init_fn, it will make again
        parts = dataclasses.replace(parts, worker_init_fn=own.read_given("worker_init_fn"))
    return LoadedWorkload(parts=parts, baseline=baseline, own=own)


def _choose(made: Any, request: WorkloadRequest) -> tuple[Any, Any]:
    """Give the data module that was returned, if it was one, and what is to be tuned of all that was."""
    if not _is_data_module(made):
        return None, choose_split(made, request.split, request.dataset)
    source = f"{request.dataset}: train_dataloader() of {describe(made)}"
    loader = choose_split(ask_datamodule(made), request.split, source)
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"{source} returned {describe(loader)}{name_loaders(loader)}. dltune tunes one DataLoader at a time: name "
            "a factory that returns it, or with --loader a function of the settings that makes it."
        )
    return made, loader


def ask_datamodule(module: Any) -> Any:
    """Get the training loader of a data module, or loaders, by the calls that a Trainer makes before it trains."""
    module.prepare_data()
    module.setup(stage="fit")
    return module.train_dataloader()


def _check_dataset(parts: Workload, source: str) -> Workload:
    dataset = parts.dataset
    if isinstance(dataset, IterableDataset):
        refuse_loader_within(dataset, source)
        return parts
    if list_splits(dataset):
        raise UsageError(f"{source} gave {describe(dataset)} as one dataset. Give one of those that it holds.")
    refuse_foreign_loader(dataset, source)
    is_ordered = parts.sampler is not None or parts.batch_sampler is not None  # then its length is not asked for
    needed = ("__getitem__",) if is_ordered else ("__getitem__", "__len__")
    lacking = [name for name in needed if not hasattr(dataset, name)]
    if isinstance(dataset, str | bytes | type(None) | int | float | type) or lacking:
        why = f"it lacks {' and '.join(lacking)}" if lacking else "it is no dataset"
        raise UsageError(
            f"{source} returned {describe(dataset)}, and {why}. Return a Dataset (with __getitem__ and __len__), "
            f"an IterableDataset, a DataLoader, a Lightning data module or an autotune.Workload."
        )
    if not is_ordered and len(cast("Any", dataset)) == 0:
        raise UsageError(f"{source} returned {describe(dataset)} of length 0: there is nothing to load.")
    return parts


def _read_settings(loader: DataLoader[Any]) -> LoaderConfig:
    workers = loader.num_workers
    return LoaderConfig(
        dataloader=DataLoaderSettings(
            batch_size=loader.batch_size,
            num_workers=workers,
            prefetch_factor=loader.prefetch_factor if workers else None,
            pin_memory=loader.pin_memory,
            persistent_workers=loader.persistent_workers,
            in_order=getattr(loader, "in_order", True) if workers else True,
        ),
        process=ProcessSettings(
            sharing_strategy=cast("SharingStrategy", get_sharing_strategy()),
            multiprocessing_context=read_start_method(loader),
        ),
    )
