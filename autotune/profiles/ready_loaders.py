"""Takes ready DataLoaders apart, so that others can be made that differ from them in their settings only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast, get_args

from autotune.config import StartMethod
from autotune.errors import UsageError
from autotune.workload import Workload

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def take_apart(loader: DataLoader[Any]) -> Workload:
    """List the parts of a loader that are no settings."""
    from torch.utils.data import IterableDataset

    iterable = isinstance(loader.dataset, IterableDataset)
    own_batches = loader.batch_size is None and loader.batch_sampler is not None
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
        multiprocessing_context=read_start_method(loader),
    )


def read_start_method(loader: DataLoader[Any]) -> StartMethod | None:
    """Read how its workers are to start; None for as the interpreter does, and for a context of no real processes."""
    method = getattr(loader.multiprocessing_context, "get_start_method", lambda: None)()
    return cast("StartMethod", method) if method in get_args(StartMethod) else None


def list_order(parts: Workload) -> dict[str, Any]:
    """List the arguments of DataLoader that say which samples make which batch; all but the batch size."""
    from torch.utils.data import IterableDataset

    if parts.batch_sampler is not None:
        return {"batch_sampler": parts.batch_sampler}
    order: dict[str, Any] = {"drop_last": parts.drop_last} if parts.batched else {"batch_size": None}
    if isinstance(parts.dataset, IterableDataset):
        return order
    if parts.sampler is not None:
        return order | {"sampler": parts.sampler}
    return order | {"shuffle": parts.shuffle is not False}


def list_kept(loader: DataLoader[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """List the arguments beside these settings that make a loader like another one.

    Raises:
        UsageError: Its class is made in a way of its own, which its attributes do not tell.
    """
    from torch.utils.data import DataLoader

    cls = type(loader)
    if cls.__init__ is not DataLoader.__init__:
        raise UsageError(
            f"A {cls.__module__}.{cls.__qualname__} is made in a way of its own, so dltune cannot make it again with "
            f"other settings. Make it by make_loader({cls.__name__}, ...), with the arguments that it has beside them."
        )
    parts = take_apart(loader)
    kept = {"dataset": parts.dataset, "collate_fn": parts.collate_fn, "generator": parts.generator, **list_order(parts)}
    if settings.get("num_workers", loader.num_workers):
        kept |= {"worker_init_fn": parts.worker_init_fn, "timeout": parts.timeout}
        kept |= {"multiprocessing_context": loader.multiprocessing_context}
    return {name: value for name, value in kept.items() if name == "batch_size" or name not in settings}


def remake_chosen(made: Any, split: str | None, remake: Callable[[DataLoader[Any]], DataLoader[Any]]) -> Any:
    """Make a loader again; of several by name or number, the one of this name.

    Raises:
        UsageError: There is no such loader.
    """
    from torch.utils.data import DataLoader

    if isinstance(made, DataLoader):
        return remake(made)
    several = made if isinstance(made, Mapping) else dict(enumerate(made)) if isinstance(made, list | tuple) else {}
    chosen = [name for name, loader in several.items() if str(name) == split and isinstance(loader, DataLoader)]
    if not chosen:
        raise UsageError(
            f"A {type(made).__qualname__} is not the DataLoader that was tuned"
            f"{'' if split is None else f', and holds none called {split}'}. Apply the settings to that loader alone, "
            "or to a module whose train_dataloader gives it."
        )
    remade = {**several, chosen[0]: remake(several[chosen[0]])}
    return remade if isinstance(made, Mapping) else list(remade.values())
