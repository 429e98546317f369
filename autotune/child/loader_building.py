"""The loader of one configuration, as training code would build it, and the length of its epochs."""

from __future__ import annotations

from torch.multiprocessing import set_sharing_strategy
from torch.utils.data import DataLoader

from autotune.child.factory_calls import MeasuredLoader
from autotune.child.loader import StoppableDataLoader
from autotune.child.ready_loaders import list_order
from autotune.child.stack_dump import DumpingWorker
from autotune.child.workload import LoadedWorkload
from autotune.config import DataLoaderSettings, LoaderConfig, ProcessSettings
from autotune.profiles.loaders import make_worker_init
from autotune.system.software import read_start_method_in_force


def build_loader(workload: LoadedWorkload, config: LoaderConfig) -> MeasuredLoader:
    """Build the loader of one configuration, whose sharing strategy is put in force; no worker is started yet."""
    parts, settings = workload.parts, config.loader_kwargs()
    set_sharing_strategy(config.process.sharing_strategy)
    are_forked = is_forking(config.process)
    init = make_worker_init(config.process, parts.worker_init_fn, are_forked=are_forked)
    init = init if are_forked else DumpingWorker(init)
    if config.dataloader.num_workers and init is not parts.worker_init_fn:
        settings["worker_init_fn"] = init
    if workload.own is not None:
        return workload.own.make(settings)
    if config.dataloader.num_workers:
        settings = {"worker_init_fn": init, "timeout": parts.timeout} | settings
    order = list_order(parts)
    return StoppableDataLoader(
        parts.dataset, collate_fn=parts.collate_fn, generator=parts.generator, **settings, **order
    )


def is_forking(process: ProcessSettings) -> bool:
    """Tell whether workers are forked by these settings, and so are there at once."""
    return (process.multiprocessing_context or read_start_method_in_force()) == "fork"


def build_plain_loader(
    workload: LoadedWorkload,
    batch_size: int | None,
    workers: int = 0,
    prefetch_factor: int = 2,
    process: ProcessSettings | None = None,
) -> MeasuredLoader:
    """Build a loader to look at a workload with, which keeps its own batches and way of starting workers, if any."""
    size = None if workload.batching == "user" else workload.fixed.get("batch_size", batch_size)
    extra = {"num_workers": workers, "prefetch_factor": prefetch_factor} if workers else {}
    process = process or ProcessSettings(multiprocessing_context=workload.start_method)
    return build_loader(
        workload, LoaderConfig(dataloader=DataLoaderSettings(batch_size=size, **extra), process=process)
    )


def count_epoch_batches(loader: MeasuredLoader, workload: LoadedWorkload) -> int | None:
    """Count the batches of a whole epoch; None where neither the sampler nor the dataset tells."""
    samples = workload.promised_samples
    try:
        if _has_own_length(loader):
            return len(loader)
        if workload.kind == "map":
            return len(loader.index_source)
    except Exception:  # a length that is not known is told in many ways
        return None
    if samples is None or loader.batch_size is None:
        return samples
    return samples // loader.batch_size if loader.drop_last else -(-samples // loader.batch_size)


def count_epoch_samples(loader: MeasuredLoader, workload: LoadedWorkload) -> int | None:
    """Count the samples that a whole epoch delivers; None where nothing promises them, or the user's code batches."""
    samples = workload.promised_samples
    if samples is None or loader.batch_size is None or workload.batching == "user" or _has_own_length(loader):
        return None
    return samples - samples % loader.batch_size if loader.drop_last else samples


def _has_own_length(loader: MeasuredLoader) -> bool:
    return type(loader).__len__ is not DataLoader.__len__
