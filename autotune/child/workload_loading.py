"""Calls the user's dataset factory, and makes one workload of whatever it returned."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

from torch.multiprocessing import get_sharing_strategy
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from autotune.child.import_string import import_attribute
from autotune.child.sample_counts import SampleCountTracker
from autotune.config import DataLoaderSettings, LoaderConfig, ProcessSettings, SharingStrategy, StartMethod
from autotune.errors import UsageError
from autotune.request import WorkloadRequest
from autotune.system.versions import read_start_method_in_force
from autotune.workload import Workload


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedWorkload:
    """The user's pipeline, ready to be given loaders.

    Attributes:
        parts: What stays as it is.
        baseline: Settings of the ready DataLoader the factory returned; None for anything else.
        sample_counts: What was seen of its size.
        owner: The data module that made the loader; kept, since it may hold the folder that its dataset reads.
    """

    parts: Workload
    baseline: LoaderConfig | None = None
    sample_counts: SampleCountTracker = dataclasses.field(default_factory=SampleCountTracker, compare=False)
    owner: Any = None

    @property
    def kind(self) -> Literal["map", "iterable"]:
        """How samples are reached."""
        return "iterable" if isinstance(self.parts.dataset, IterableDataset) else "map"

    @property
    def batching(self) -> Literal["batch_size", "user"]:
        """Whether the batch size can be set."""
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


def load_workload(request: WorkloadRequest) -> LoadedWorkload:
    """Import and call the user's dataset factory, and apply the collate function that the request names."""
    factory = import_attribute(request.dataset)
    is_made = isinstance(factory, Workload | DataLoader | Dataset) or _is_data_module(factory)
    made = factory(**request.dataset_args) if callable(factory) and not is_made else factory
    loaded = wrap_dataset(made, request.dataset)
    if request.collate is not None:
        collate = import_attribute(request.collate)
        loaded = dataclasses.replace(loaded, parts=dataclasses.replace(loaded.parts, collate_fn=collate))
    return loaded


def _is_data_module(made: Any) -> bool:
    """Tell whether it has the hooks by which Lightning's modules hand out data, without importing Lightning."""
    hooks = ("prepare_data", "setup", "train_dataloader")
    return not isinstance(made, type) and all(callable(getattr(made, hook, None)) for hook in hooks)


def wrap_dataset(made: Any, source: str) -> LoadedWorkload:
    """Make a workload of a dataset, a DataLoader, a Lightning data module or a Workload; `source` is for messages."""
    if isinstance(made, DataLoader):
        return LoadedWorkload(parts=workload_from_dataloader(made), baseline=_read_settings(made))
    if _is_data_module(made):
        return dataclasses.replace(wrap_dataset(loader_from_datamodule(made, source), source), owner=made)
    if isinstance(made, Workload):
        return LoadedWorkload(parts=_check_dataset(made, source))
    return LoadedWorkload(parts=_check_dataset(Workload(dataset=made), source))


def loader_from_datamodule(module: Any, source: str) -> DataLoader[Any]:
    """Get the training loader of a data module, by the calls that a Trainer makes before it trains."""
    module.prepare_data()
    module.setup(stage="fit")
    loader = module.train_dataloader()
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"{source}: train_dataloader() of {_describe(module)} returned {_describe(loader)}{_name_loaders(loader)}. "
            "dltune tunes one DataLoader at a time: name a factory that returns it."
        )
    return loader


def _check_dataset(parts: Workload, source: str) -> Workload:
    dataset = parts.dataset
    if isinstance(dataset, IterableDataset):
        return parts
    if isinstance(dataset, Mapping) and "train" in dataset:
        splits = ", ".join(map(repr, dataset))
        raise UsageError(f"{source} returned {_describe(dataset)} of {splits}. Return one of these splits.")
    _refuse_foreign_loader(dataset, source)
    is_ordered = parts.sampler is not None or parts.batch_sampler is not None  # then its length is not asked for
    needed = ("__getitem__",) if is_ordered else ("__getitem__", "__len__")
    lacking = [name for name in needed if not hasattr(dataset, name)]
    if isinstance(dataset, str | bytes | type(None) | int | float | type) or lacking:
        why = f"it lacks {' and '.join(lacking)}" if lacking else "it is no dataset"
        raise UsageError(
            f"{source} returned {_describe(dataset)}, and {why}. Return a Dataset (with __getitem__ and __len__), "
            "an IterableDataset, a DataLoader, a Lightning data module or an autotune.Workload."
        )
    if not is_ordered and len(cast("Any", dataset)) == 0:
        raise UsageError(f"{source} returned {_describe(dataset)} of length 0: there is nothing to load.")
    return parts


def _refuse_foreign_loader(made: Any, source: str) -> None:
    """Say what a loader is that is not torch's, which can only be gone through, and what to return instead of it."""
    if isinstance(made, type) or hasattr(made, "__getitem__") or not hasattr(made, "__iter__"):
        return
    if found := _name_loaders(made):
        raise UsageError(
            f"{source} returned {_describe(made)}{found}. dltune tunes one DataLoader of torch at a time: return that."
        )
    raise UsageError(
        f"{source} returned {_describe(made)}, which can only be gone through, and holds no DataLoader of torch that "
        "could be tuned. Return the Dataset that it reads; a stream of samples must be an IterableDataset."
    )


def _name_loaders(made: Any) -> str:
    """Say where the DataLoaders are that an object of another library holds; empty where it holds none."""
    places = list(dict.fromkeys(_find_loaders(made)))
    if not places:
        return ""
    holds = "a DataLoader" if len(places) == 1 else f"{len(places)} DataLoaders"
    return f", which holds {holds}: {', '.join(places)}"


def _find_loaders(made: Any) -> Iterator[str]:
    """Yield the places of DataLoaders, as in `.loader` and `.iterables['train']`; each loader once."""
    seen: set[int] = set()
    is_collection = isinstance(made, Mapping | list | tuple)
    for name, value in [("", made)] if is_collection else list(getattr(made, "__dict__", {}).items()):
        public = name.lstrip("_")
        place = f".{public if hasattr(made, public) else name}" if name else ""
        for key, loader in _list_entries(value):
            if isinstance(loader, DataLoader) and id(loader) not in seen:
                seen.add(id(loader))
                yield f"`{place}{key}`"


def _list_entries(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", entry) for key, entry in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{number}]", entry) for number, entry in enumerate(value)]
    return [("", value)]


def _describe(made: Any) -> str:
    return "None" if made is None else f"a {type(made).__module__}.{type(made).__qualname__}"


def workload_from_dataloader(loader: DataLoader[Any]) -> Workload:
    """Take a ready DataLoader apart."""
    iterable = isinstance(loader.dataset, IterableDataset)
    own_batches = loader.batch_size is None and loader.batch_sampler is not None
    context = loader.multiprocessing_context
    return Workload(
        dataset=loader.dataset,
        sampler=None if iterable or own_batches else loader.sampler,
        batch_sampler=loader.batch_sampler if own_batches else None,
        batched=loader.batch_sampler is not None or loader.batch_size is not None,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        multiprocessing_context=None if context is None else context.get_start_method(),
    )


def _read_settings(loader: DataLoader[Any]) -> LoaderConfig:
    workers = loader.num_workers
    context = loader.multiprocessing_context
    return LoaderConfig(
        dataloader=DataLoaderSettings(
            batch_size=loader.batch_size,
            num_workers=workers,
            prefetch_factor=loader.prefetch_factor if workers else None,
            pin_memory=loader.pin_memory,
            persistent_workers=loader.persistent_workers,
            in_order=loader.in_order if workers else True,
        ),
        process=ProcessSettings(
            sharing_strategy=cast("SharingStrategy", get_sharing_strategy()),
            multiprocessing_context=None if context is None else cast("StartMethod", context.get_start_method()),
        ),
    )
