"""Says what an object is that is neither a dataset nor a DataLoader of torch, and which DataLoaders it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from autotune.errors import UsageError


def refuse_foreign_loader(made: Any, source: str) -> None:
    """Say what a loader is that is not torch's, which can only be gone through, and what to return instead of it."""
    if not only_iterates(made):
        return
    if found := name_loaders(made):
        raise UsageError(
            f"{source} returned {describe(made)}{found}. dltune tunes one DataLoader of torch at a time: return that, "
            f"or give a function that makes all of it of the settings, with --loader."
        )
    raise UsageError(
        f"{source} returned {describe(made)}, which can only be gone through, and holds no DataLoader of torch that "
        "could be tuned. Return the Dataset that it reads (a stream of samples must be an IterableDataset), or give a "
        f"function that makes this of the settings, with --loader."
    )


def only_iterates(made: Any) -> bool:
    """Tell whether an object can only be gone through, as loaders of other libraries."""
    return hasattr(made, "__iter__") and not isinstance(made, type) and not hasattr(made, "__getitem__")


def refuse_loader_within(dataset: IterableDataset[Any], source: str) -> None:
    """Refuse what calls itself a dataset and is a loader: batches would be batched again, by workers within workers."""
    if found := name_loaders(dataset):
        raise UsageError(
            f"{source} returned {describe(dataset)}{found}. It is a loader by itself: a DataLoader around it would "
            "batch its batches, and start workers in its workers. Give a function that makes it of the settings, with "
            f"--loader."
        )


def name_loaders(made: Any) -> str:
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
        for key, loader in _list_entries(value):
            if isinstance(loader, DataLoader) and id(loader) not in seen:
                seen.add(id(loader))
                yield f"`{_name_place(made, name)}{key}`"


def _name_place(made: Any, name: str) -> str:
    """Write an attribute as its users would; only asked where it holds a loader, since asking may run code."""
    public = name.lstrip("_")
    return f".{public if hasattr(made, public) else name}" if name else ""


def _list_entries(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", entry) for key, entry in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{number}]", entry) for number, entry in enumerate(value)]
    return [("", value)]


def describe(made: Any) -> str:
    """Name what was returned by its type."""
    cls = type(made)
    module = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
    return "None" if made is None else f"a {module}{cls.__qualname__}"
