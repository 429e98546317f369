"""From what the user's factory returned to a DataLoader for one configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, cast

from torch.multiprocessing import get_sharing_strategy, set_sharing_strategy
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from autotune.child.import_string import import_attribute
from autotune.child.stopping import complete_round
from autotune.config import DataLoaderSettings, LoaderConfig, ProcessSettings, SharingStrategy, StartMethod
from autotune.errors import UsageError
from autotune.profiles.worker_init import WorkerSetup
from autotune.request import WorkloadRequest
from autotune.system.versions import read_start_method_in_force
from autotune.workload import Workload

DUPLICATED_RATIO: Final = 1.5  # times the samples of one process
INCOMPLETE_RATIO: Final = 0.75  # of them


class SampleCountTracker:
    """Remembers how many samples an iterable dataset delivers in one process, to hold what workers deliver against.

    Attributes:
        samples: Of a whole epoch; None while none was seen.
        asks_which_worker: Whether its code was seen to ask which worker it runs in. Then what several workers deliver
            beyond that is meant: an epoch for each of them, as of shards that are drawn again and again.
        is_per_worker: Whether that was seen.
    """

    def __init__(self) -> None:
        self.samples: int | None = None
        self.asks_which_worker = False
        self.is_per_worker = False

    def note(self, samples: int) -> None:
        """Record what a whole epoch in one process delivered."""
        self.samples = samples

    def is_multiplied(self, samples: int) -> bool:
        """Tell whether so many samples come only from workers that each deliver as many as one process."""
        return bool(self.samples) and samples > DUPLICATED_RATIO * (self.samples or 0)

    def is_exceeded(self, samples: int) -> bool:
        """Tell whether so many samples come from workers that each go through all of the data without knowing it."""
        return self.is_multiplied(samples) and not self.asks_which_worker

    def is_missed(self, samples: int) -> bool:
        """Tell whether a whole epoch of so many samples leaves data out."""
        return bool(self.samples) and samples < INCOMPLETE_RATIO * (self.samples or 0)


@dataclasses.dataclass(frozen=True)
class LoadedWorkload:
    """The user's pipeline, ready to be given loaders.

    Attributes:
        parts: What stays as it is.
        baseline: Settings of the ready DataLoader the factory returned; None for anything else.
        census: What was seen of its size.
        owner: The data module that made the loader; kept, since it may hold the folder that its dataset reads.
    """

    parts: Workload
    baseline: LoaderConfig | None = None
    census: SampleCountTracker = dataclasses.field(default_factory=SampleCountTracker, compare=False)
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
    def stacks_samples(self) -> bool:
        """Whether torch's own collate makes the batches, so that the first dimension counts their samples."""
        return self.batching == "batch_size" and self.parts.collate_fn in (None, default_collate)


def load_workload(request: WorkloadRequest) -> LoadedWorkload:
    """Import and call the user's dataset factory.

    Args:
        request: Names the factory, its arguments and perhaps a collate function.

    Returns:
        The workload.

    Raises:
        UsageError: What the factory returned is not a dataset, a DataLoader, a data module or a Workload.
        Exception: Whatever the user's code raises.
    """
    factory = import_attribute(request.dataset)
    made = factory(**request.dataset_args) if callable(factory) and not _is_workload(factory) else factory
    loaded = wrap_dataset(made, request.dataset)
    if request.collate is not None:
        collate = import_attribute(request.collate)
        loaded = dataclasses.replace(loaded, parts=dataclasses.replace(loaded.parts, collate_fn=collate))
    return loaded


def _is_workload(made: Any) -> bool:
    return isinstance(made, Workload | DataLoader | Dataset) or _is_data_module(made)


def _is_data_module(made: Any) -> bool:
    """Tell whether it has the hooks by which Lightning's modules hand out data, without importing Lightning."""
    hooks = ("prepare_data", "setup", "train_dataloader")
    return not isinstance(made, type) and all(callable(getattr(made, hook, None)) for hook in hooks)


def wrap_dataset(made: Any, source: str) -> LoadedWorkload:
    """Take apart what a factory returned.

    Args:
        made: A map-style or iterable dataset, a DataLoader, a Lightning data module, or a Workload.
        source: Import string of the factory, for messages.

    Returns:
        The workload.

    Raises:
        UsageError: It is none of these.
    """
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
    own = made if isinstance(made, Mapping | list | tuple) else None
    parts = [("", own)] if own is not None else list(getattr(made, "__dict__", {}).items())
    for name, value in parts:
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


class StoppableSampler:
    """Stands between the sampler and the loader; counts what passes and can be closed.

    Closing it ends an epoch the natural way: nothing more is handed out, and what is under way arrives.

    Args:
        source: The sampler or batch sampler that the loader would use.
    """

    def __init__(self, source: Iterable[Any]) -> None:
        self._source = source
        self.open()

    def open(self, most_batches: int | None = None, last_size: int | None = None) -> None:
        """Make the gate ready for an epoch.

        Args:
            most_batches: Batches after which it closes by itself; None for no such end.
            last_size: Indices of the last batch before it closes, which is cut to them; None to leave it whole.
        """
        self.closed = False
        self._sizes: list[int] = []
        self._last: Any = ()
        self._most_batches = most_batches
        self._last_size = last_size

    @property
    def batches(self) -> int:
        """Batches handed out so far."""
        return len(self._sizes)

    def count_samples(self, batches: int) -> int:
        """Count the samples of the first so many batches handed out, whatever shape they arrive in."""
        return sum(self._sizes[:batches])

    @property
    def fewest_batches(self) -> int:
        """The fewest batches that it can close after: one more than now, if the last one is to be cut."""
        return self.batches + (self._last_size is not None)

    def was_last(self, index: int) -> bool:
        """Tell whether a sample is one of the batch that was handed out last."""
        return index in self._last if isinstance(self._last, list | tuple) else bool(index == self._last)

    def close_after(self, batches: int) -> None:
        """Hand out nothing more in this epoch once so many batches have passed, or as many as have by now."""
        self._most_batches = max(batches, self.batches)

    def __iter__(self) -> Iterator[Any]:
        for index in self._source:
            if self.batches == self._most_batches:
                self.closed = True
                return
            if self.batches + 1 == self._most_batches and self._last_size is not None:
                index = index[: self._last_size]  # noqa: PLW2901  # what is handed out instead
            self._sizes.append(_count_indices(index))
            self._last = index
            yield index

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type]  # as DataLoader itself asks its sampler


def _count_indices(index: Any) -> int:
    """Count the samples that a sampler asks for at once; a batch of indices may be any sequence, array or tensor."""
    if isinstance(index, str | bytes | Mapping):
        return 1
    try:
        return len(index)
    except TypeError:  # a number, also as an array or tensor without dimensions
        return 1


class StoppableDataLoader(DataLoader[Any]):
    """A DataLoader whose epochs can be ended early without leaving batches behind."""

    @property
    def gate(self) -> StoppableSampler:
        """The gate of this loader."""
        gate: StoppableSampler | None = self.__dict__.get("_gate")
        if gate is None:
            gate = self.__dict__["_gate"] = StoppableSampler(super()._index_sampler)
        return gate

    def close(self, epoch_batches: int | None) -> None:
        """End the epoch soon, with as many batches in the workers' last round as a whole epoch has there.

        A round that is not full takes as long as a full one; ending on one would make the epoch look slower. And its
        last batch is cut as short as that of a whole epoch, where the gate was told so, and takes what that takes.

        Args:
            epoch_batches: Batches of a whole epoch; None when not known.
        """
        self.gate.close_after(complete_round(self.gate.fewest_batches, self.num_workers, epoch_batches))

    @property
    def _index_sampler(self) -> StoppableSampler:  # the one place where torch's iterators take their indices from
        return self.gate


def build_loader(workload: LoadedWorkload, config: LoaderConfig) -> StoppableDataLoader:
    """Build the loader of one configuration, as training code would.

    Args:
        workload: The user's pipeline.
        config: The configuration; its sharing strategy is put in force for this process.

    Returns:
        A loader that has not started any worker yet.
    """
    parts = workload.parts
    set_sharing_strategy(config.process.sharing_strategy)
    kwargs = config.loader_kwargs() | {
        "dataset": parts.dataset,
        "collate_fn": parts.collate_fn,
        "worker_init_fn": parts.worker_init_fn,
        "generator": parts.generator,
        "timeout": parts.timeout if config.dataloader.num_workers else 0,
    }
    if config.dataloader.num_workers and config.process.multiprocessing_context not in (None, "fork"):
        kwargs["worker_init_fn"] = WorkerSetup(config.process.sharing_strategy, parts.worker_init_fn)
    return StoppableDataLoader(**kwargs, **_choose_order(workload))


def _choose_order(workload: LoadedWorkload) -> dict[str, Any]:
    parts = workload.parts
    if parts.batch_sampler is not None:
        return {"batch_sampler": parts.batch_sampler}
    order: dict[str, Any] = {} if parts.batched else {"batch_size": None}
    if parts.batched:
        order["drop_last"] = parts.drop_last
    if workload.kind == "iterable":
        return order
    if parts.sampler is not None:
        return order | {"sampler": parts.sampler}
    return order | {"shuffle": parts.shuffle is not False}


def count_batches(loader: StoppableDataLoader, workload: LoadedWorkload) -> int | None:
    """Count the batches of a whole epoch.

    Args:
        loader: The loader.
        workload: Its pipeline.

    Returns:
        Batches; None where neither the sampler nor the dataset tells.
    """
    samples = count_samples_promised(workload)
    try:
        if workload.kind == "map":
            return len(loader.gate)
    except TypeError:
        return None
    if samples is None or loader.batch_size is None:
        return samples
    return samples // loader.batch_size if loader.drop_last else -(-samples // loader.batch_size)


def count_epoch_samples(loader: StoppableDataLoader, workload: LoadedWorkload) -> int | None:
    """Count the samples that a whole epoch delivers.

    Args:
        loader: The loader.
        workload: Its pipeline.

    Returns:
        Samples, without those of a last batch that is dropped; None where they are not promised, or batched by the
        user's code.
    """
    samples = count_samples_promised(workload)
    if samples is None or loader.batch_size is None or workload.batching == "user":
        return None
    return samples - samples % loader.batch_size if loader.drop_last else samples


def count_samples_promised(workload: LoadedWorkload) -> int | None:
    """Count the samples of an epoch, as the sampler or the dataset says; None where neither does."""
    parts = workload.parts
    counted = parts.sampler if parts.sampler is not None else parts.dataset
    try:
        return len(counted)  # type: ignore[arg-type]  # many samplers and iterable datasets have no length
    except (TypeError, NotImplementedError):
        return None


def forks_workers(workload: LoadedWorkload) -> bool:
    """Tell whether its workers are forked, and so inherit what the training process has in memory or open."""
    return (workload.parts.multiprocessing_context or read_start_method_in_force()) == "fork"
