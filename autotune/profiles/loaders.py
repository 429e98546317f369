"""Arguments of DataLoaders, and the setup of workers. Spawned workers import this module, which imports no package."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import UsageError
from autotune.system.software import THREAD_VARIABLES

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from autotune.config import ProcessSettings

WITHOUT_WORKERS: Final = {"prefetch_factor": None, "persistent_workers": False, "in_order": True}
SET_BY_FUNCTIONS: Final = ("worker_init_fn", "multiprocessing_context")  # unless a parameter has the name
NEEDS_WORKERS: Final = (*WITHOUT_WORKERS, "multiprocessing_context", "timeout")  # arguments without effect otherwise
THREAD_SETTERS: Final = {"cv2": "setNumThreads", "threadpoolctl": "threadpool_limits"} | dict.fromkeys(
    ("mkl", "numexpr", "torch"), "set_num_threads"
)  # functions of modules, called if the module has been imported


def read_signature(make: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function, whose annotations may name what is only imported for type checkers."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(make, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(make)


def list_parameters(make: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function, or of a class's `__init__` without `self`."""
    if isinstance(make, type):
        return list(read_signature(make.__init__).parameters.values())[1:]  # type: ignore[misc]  # not called
    return list(read_signature(make).parameters.values())


def takes(make: Callable[..., Any], name: str) -> bool:
    """Return whether a function or class accepts an argument of this name.

    `**kwargs` of a function accepts all but those that it may set itself. That of a constructor is assumed to be passed
    on to that of the base class.
    """
    if not isinstance(make, type):
        parameters = list_parameters(make)
        is_any = name not in SET_BY_FUNCTIONS and any(one.kind is one.VAR_KEYWORD for one in parameters)
        return is_any or any(one.name == name for one in parameters)
    for parameters in (list_parameters(cls) for cls in make.__mro__[:-1] if "__init__" in vars(cls)):  # without object
        if any(one.name == name for one in parameters):
            return True
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            return False
    return True


def choose_arguments(make: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a function or class accepts; without workers, replace its defaults that need workers."""
    found = {name: value for name, value in settings.items() if takes(make, name)}
    if settings.get("num_workers") == 0:
        named = {one.name for one in list_parameters(make)}
        found |= {name: value for name, value in WITHOUT_WORKERS.items() if name in named}
    return found


def list_kept(loader: DataLoader[Any], settings: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments besides settings and the user's `own` that make a loader like this one.

    Raises:
        UsageError: It cannot be made from its attributes, or its sampler is that of another dataset.
    """
    from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

    cls = type(loader)
    if hasattr(loader, "base_dataloader"):
        raise UsageError(
            "This loader was prepared by accelerate. Use accelerator.prepare(tuned.apply_to(loader)); for a Trainer of "
            "transformers, TrainingArguments(**tuned.kwargs_for('hf'))."
        )
    if cls.__init__ is not DataLoader.__init__:
        name = f"{cls.__module__}.{cls.__qualname__}"
        raise UsageError(
            f"{name} has its own constructor, so dltune cannot rebuild it with other settings. "
            f"Use make_loader({name}, ...) with its other arguments."
        )
    given = {**settings, **own}
    names = ["dataset", "collate_fn", "generator", "num_workers", "pin_memory"]
    if given.get("num_workers", loader.num_workers):
        names += ["worker_init_fn", "timeout", "multiprocessing_context", *WITHOUT_WORKERS]
    is_batched, order = loader.batch_sampler is not None, dict[str, Any]()
    if is_batched and loader.batch_size is None:
        names += ["batch_sampler"] * ("batch_size" not in own)
        if "batch_size" in own and not own.keys() & {"shuffle", "sampler"}:
            if type(batches := loader.batch_sampler) is not BatchSampler:
                raise UsageError("The loader has a batch sampler of its own: pass shuffle or sampler with batch_size.")
            order = {"sampler": batches.sampler, "drop_last": batches.drop_last}
    elif "batch_sampler" not in own:
        has_order = isinstance(loader.dataset, IterableDataset) or own.keys() & {"shuffle", "sampler"}
        names += ["batch_size", "drop_last"] + ["sampler"] * (not has_order)
    kept = order | {name: getattr(loader, name) for name in names if name not in given}
    if "dataset" in own and {"sampler", "batch_sampler"} & kept.keys():
        sampler = kept.pop("sampler", None)
        is_random = type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
        if not is_random and type(sampler) is not SequentialSampler:
            raise UsageError("The loader's sampler is that of its own dataset: pass sampler or batch_sampler, too.")
        kept["shuffle"] = is_random
    is_set = is_batched or own.keys() & {"batch_size", "batch_sampler"}
    return kept if is_set else kept | {"batch_size": None}  # samples are not batched


def find_inner_loaders(one: Any) -> list[str]:
    """Return the attributes of an object without samples by index that are DataLoaders, or lists with one."""
    from torch.utils.data import DataLoader, IterableDataset

    if hasattr(type(one), "__getitem__") and not isinstance(one, IterableDataset):
        return []
    attributes = getattr(one, "__dict__", {}).items()
    lists = ((name, value if isinstance(value, list | tuple) else [value]) for name, value in attributes)
    return [f"`.{name}`" for name, values in lists if any(isinstance(each, DataLoader) for each in values)]


def replace_loader(made: Any, split: str | None, rebuild: Callable[[DataLoader[Any]], Any]) -> Any:
    """Rebuild a loader, of several the one that `split` names; raise UsageError if there is none."""
    from torch.utils.data import DataLoader

    if isinstance(made, DataLoader):
        return rebuild(made)
    parts = getattr(made, "iterables", made)  # of Lightning's CombinedLoader
    several = parts if isinstance(parts, Mapping) else dict(enumerate(parts)) if isinstance(parts, list | tuple) else {}
    chosen = [name for name, loader in several.items() if str(name) == split and isinstance(loader, DataLoader)]
    if not chosen:
        missing = "" if split is None else f" and contains none named {split}"
        raise UsageError(
            f"{type(made).__qualname__} is not a DataLoader{missing}. Pass the DataLoader that was tuned; make_loader "
            "takes a dataset, or a function that makes another kind of loader."
        )
    rebuilt = {**several, chosen[0]: rebuild(several[chosen[0]])}
    if parts is not made:
        made.flattened = list(rebuilt.values())
        return made
    return rebuilt if isinstance(made, Mapping) else list(rebuilt.values())


def set_up_worker(strategy: str, threads: int | None, then: Callable[[int], None] | None, worker_id: int) -> None:
    """Set the sharing strategy, which only forked workers inherit; limit threads; call the user's `worker_init_fn`."""
    from torch.multiprocessing import set_sharing_strategy

    set_sharing_strategy(strategy)
    if threads is not None:  # of each library; by default most use as many as there are CPUs
        limit_threads(threads)
    if then is not None:
        then(worker_id)


def limit_threads(threads: int) -> None:
    """Limit the threads that each library uses in this process, as far as libraries allow."""
    os.environ |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    if threads == 1:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with contextlib.suppress(ImportError):
        importlib.import_module("threadpoolctl")  # limits OpenBLAS and OpenMP; it comes with scikit-learn
    for module, setter in THREAD_SETTERS.items():
        if module in sys.modules:
            getattr(sys.modules[module], setter)(threads)


def make_worker_init(
    process: ProcessSettings, then: Callable[[int], None] | None, *, are_forked: bool
) -> Callable[[int], None] | None:
    """Return the `worker_init_fn` of a configuration; the user's own if workers inherit everything else."""
    if are_forked and process.worker_threads is None:
        return then
    from torch.multiprocessing import get_sharing_strategy

    return partial(set_up_worker, get_sharing_strategy(), process.worker_threads, then)
