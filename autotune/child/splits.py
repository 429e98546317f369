"""Chooses one of several loaders or datasets that a factory returned: a dict or list of them, or Lightning's."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Set
from typing import Any

from torch.utils.data import DataLoader, Dataset

from autotune.child.foreign_loaders import describe, only_iterates
from autotune.errors import UsageError
from autotune.request import Workload


def choose_split(made: Any, split: str | None, source: str) -> Any:
    """Choose the one of this name, where several loaders or datasets were returned; else give what was returned.

    Raises:
        UsageError: None of several was named, or a name was given that nothing has.
    """
    several = list_splits(made)
    if split is None and not several:
        return made
    found = f"{source} returned {describe(made)}"
    if not several:
        raise UsageError(f"--split {split}: {found}, and not several loaders or datasets by name. Leave --split out.")
    found = f"{found} of {_count(several)}: {', '.join(map(repr, several))}"
    if split is None:
        example = next((name for name in several if "train" in name), next(iter(several)))
        raise UsageError(f"{found}. Choose one with --split {shlex.quote(example)}.")
    if split not in several:
        raise UsageError(f"--split {split}: {found}. Choose one of these.")
    if within := list_splits(several[split]):
        raise UsageError(f"--split {split}: {source} has {_count(within)} by that name. Return one level of names.")
    return several[split]


def choose_loader(made: Any, split: str | None, source: str) -> Any:
    """Choose as `choose_split` does of what a function of the settings made; what iterates may be one loader."""
    is_several = split is not None or isinstance(made, Mapping | list | tuple)
    return choose_split(made, split, source) if is_several else made


def list_splits(made: Any) -> dict[str, Any]:
    """List the loaders or datasets that were returned together, by name or number; empty where one was returned.

    A list of samples is a dataset by itself, and so is a dict of them by number.
    """
    if isinstance(made, DataLoader | Dataset | Workload):
        return {}
    entries = getattr(made, "iterables", made)  # of Lightning's CombinedLoader
    if isinstance(entries, list | tuple):
        entries = dict(enumerate(entries))
    if not isinstance(entries, Mapping):
        return {}
    found = {str(name): entry for name, entry in entries.items() if _is_data(entry)}
    return found or ({str(name): entry for name, entry in entries.items()} if "train" in entries else {})


def _is_data(entry: Any) -> bool:
    """Tell a loader or dataset from a sample, also one of a library that derives neither from torch's."""
    if isinstance(entry, DataLoader | Dataset | Workload) or hasattr(entry, "__getitems__"):
        return True
    return _is_foreign_loader(entry) or (isinstance(entry, Mapping) and any(map(_is_data, entry.values())))


def _is_foreign_loader(entry: Any) -> bool:
    return only_iterates(entry) and not isinstance(entry, Set)  # of names, say


def _count(several: Mapping[str, Any]) -> str:
    are_loaders = any(isinstance(entry, DataLoader) or _is_foreign_loader(entry) for entry in several.values())
    return f"{len(several)} {'loader' if are_loaders else 'dataset'}{'' if len(several) == 1 else 's'}"
