"""What is known of other libraries' loaders: how each is given to dltune, and what to know of its measurements.

Nothing of a library is imported. An entry holds for the classes that derive from its own, too, unless they have one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from autotune.child.constructor_calls import LOADER_SETTINGS


@dataclass(frozen=True, slots=True)
class Adapter:
    """What is known of one class.

    Attributes:
        name: The class, with the module that defines it.
        option: By which option it is given.
        overrides: The methods in which it differs from torch's DataLoader; empty where it is none.
        call: What a factory returns to give it, in terms of the settings; None where it is returned as it is.
        warning: What to know of its measurements; None for nothing.
        is_run: Whether its test was run with the library; else what it says was read in the library's source.
    """

    name: str
    option: Literal["--dataset", "--loader"]
    overrides: tuple[str, ...] = ()
    call: str | None = None
    warning: str | None = None
    is_run: bool = True

    @property
    def library(self) -> str:
        """The package that it is imported from."""
        return self.name.partition(".")[0]

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings that its call hands on."""
        return tuple(name for name in LOADER_SETTINGS if re.search(rf"\b{name}\b", self.call or ""))

    @property
    def hint(self) -> str | None:
        """How to give it, in one sentence; None where there is nothing to say."""
        if self.call is None:
            return None
        if self.option == "--dataset":
            return f"With {self.library}, return {self.call} for --dataset."
        return f"With {self.library}: def make_loader({', '.join(self.settings)}): return {self.call}"


TABLE: Final = (
    Adapter(
        "accelerate.data_loader.DataLoaderDispatcher",
        "--loader",
        call="accelerator.prepare(DataLoader(dataset, batch_size=batch_size, num_workers=num_workers))",
        warning="Process 0 loads the batches of all processes: give the batch size and the workers that it has there.",
    ),
    Adapter(
        "accelerate.data_loader.DataLoaderShard",
        "--loader",
        call="accelerator.prepare(DataLoader(dataset, batch_size=batch_size, num_workers=num_workers))",
        warning="It fetches one batch ahead and moves each to its device: both are in the measurements.",
    ),
    Adapter(
        "composer.core.data_spec.DataSpec",
        "--dataset",
        call="spec.dataloader",
        is_run=False,
    ),
    Adapter(
        "datasets.iterable_dataset.IterableDataset",
        "--dataset",
        warning="Where it reads shuffled files, `datasets` sleeps for 5 s at the end of each epoch, in each worker "
        "(datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN); trials that leave a long epoch do not see that.",
    ),
    Adapter(
        "detectron2.data.common.AspectRatioGroupedDataset",
        "--loader",
        call="build_detection_train_loader(images, mapper=mapper, total_batch_size=batch_size, "
        "num_workers=num_workers)",
        warning="It groups images into batches in the main process: more workers do not share that work.",
        is_run=False,
    ),
    Adapter(
        "litdata.streaming.dataloader.StreamingDataLoader",
        "--dataset",
        overrides=("__init__", "__iter__", "__len__", "_get_iterator"),
        warning="Its dataset shares the chunks out by batch size and workers: the order of samples changes with them.",
    ),
    Adapter(
        "monai.data.thread_buffer.ThreadDataLoader",
        "--dataset",
        overrides=("__init__", "__iter__"),
        warning="With `repeats` above 1 each batch counts as often as it is handed out; and with `use_thread_workers` "
        "its workers are threads of one process, which share one interpreter.",
    ),
    Adapter(
        "nvidia.dali.plugin.pytorch.DALIGenericIterator",
        "--loader",
        call="DALIGenericIterator(make_pipeline(batch_size=batch_size, num_threads=num_workers or 1), names, "
        "auto_reset=True)",
        warning="Without auto_reset its second epoch is empty; num_workers stands for the threads of its pipeline.",
        is_run=False,
    ),
    Adapter(
        "ray.data.iterator._IterableFromIterator",
        "--loader",
        call="ray_dataset.iter_torch_batches(batch_size=batch_size)",
        warning="Its batches are read by Ray's own processes, which are not counted among the workers.",
        is_run=False,
    ),
    Adapter(
        "spdl.dataloader._dataloader.DataLoader",
        "--loader",
        call="DataLoader(source, preprocessor=load, aggregator=collate, batch_size=batch_size, "
        "num_threads=num_workers or 1)",
        warning="num_workers stands for its threads.",
    ),
    Adapter(
        "spdl.dataloader._pytorch_dataloader.PyTorchDataLoader",
        "--loader",
        call="get_pytorch_dataloader(dataset, batch_size=batch_size, num_workers=num_workers or 1, "
        "prefetch_factor=prefetch_factor or 2)",
        warning="It starts its processes anew for each epoch, and puts the dataset into /dev/shm each time it is made, "
        "where it stays until the process ends.",
    ),
    Adapter(
        "streaming.base.dataloader.StreamingDataLoader",
        "--dataset",
        overrides=("__init__", "__iter__"),
    ),
    Adapter(
        "streaming.base.dataset.StreamingDataset",
        "--loader",
        call="StreamingDataLoader(StreamingDataset(local=folder, batch_size=batch_size), batch_size=batch_size, "
        "num_workers=num_workers)",
        warning="It shares itself out by a batch size of its own, which stays. To search it, give it to both in a "
        "function for --loader.",
    ),
    Adapter(
        "timm.data.loader.MultiEpochsDataLoader",
        "--dataset",
        overrides=("__init__", "__iter__", "__len__"),
    ),
    Adapter(
        "timm.data.loader.PrefetchLoader",
        "--loader",
        call="create_loader(dataset, input_size, batch_size, is_training=True, num_workers=num_workers, "
        "pin_memory=pin_memory, persistent_workers=persistent_workers, device=device)",
        warning="It moves and normalises each batch on its device: that is in the measurements.",
    ),
    Adapter(
        "torch_geometric.loader.dataloader.DataLoader",
        "--dataset",
        overrides=("__init__",),
        warning="It collates by itself: a collate_fn that it is given, also by --collate, is not used.",
    ),
    Adapter(
        "torch_geometric.loader.link_loader.LinkLoader",
        "--dataset",
        overrides=("__init__", "_get_iterator"),
        warning="With filter_per_worker=False its main process gathers the features of each batch: more workers do not "
        "share that work.",
    ),
    Adapter(
        "torch_geometric.loader.node_loader.NodeLoader",
        "--dataset",
        overrides=("__init__", "_get_iterator"),
        warning="With filter_per_worker=False its main process gathers the features of each batch: more workers do not "
        "share that work.",
    ),
    Adapter(
        "torchdata.nodes.loader.Loader",
        "--loader",
        call="Loader(Prefetcher(ParallelMapper(Batcher(IterableWrapper(samples), batch_size), collate, "
        "num_workers=num_workers or 1), prefetch_factor or 1))",
        warning="num_workers stands for the threads or processes of its ParallelMapper.",
    ),
    Adapter(
        "torchdata.stateful_dataloader.stateful_dataloader.StatefulDataLoader",
        "--dataset",
        overrides=("__init__", "__iter__", "_get_iterator"),
        warning="Its workers send their state with every batch, unless snapshot_every_n_steps says otherwise. What the "
        "state of a sampler costs is not in the measurements.",
    ),
    Adapter(
        "ultralytics.data.build.InfiniteDataLoader",
        "--dataset",
        overrides=("__init__", "__iter__", "__len__"),
    ),
    Adapter(
        "webdataset.compat.WebLoader",
        "--loader",
        call="WebLoader(dataset.batched(batch_size), batch_size=None, num_workers=num_workers)",
        warning="Where the dataset makes the batches, each worker ends with a batch that may be smaller.",
    ),
)
ADAPTERS: Final = {adapter.name: adapter for adapter in TABLE}


def find_adapter(cls: type) -> Adapter | None:
    """Find what is known of a class, or of the nearest one that it derives from."""
    names = (f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__)
    return next((ADAPTERS[name] for name in names if name in ADAPTERS), None)


def suggest_call(made: object) -> str:
    """Say how what was returned is given with its library, as the end of a refusal; empty where that is not known."""
    adapter = find_adapter(type(made))
    return f" {adapter.hint}" if adapter is not None and adapter.hint is not None else ""


def warn_of(cls: type) -> str | None:
    """Say what to know of the measurements of a class; None for nothing."""
    adapter = find_adapter(cls)
    return None if adapter is None or adapter.warning is None else f"{cls.__qualname__}: {adapter.warning}"
