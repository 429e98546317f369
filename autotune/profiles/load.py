"""Makes the profile that fits this machine ready for training code.

Loading never imports the module a profile names, and needs neither torch nor optuna nor click.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args

from autotune.config import DataLoaderSettings, LoaderConfig
from autotune.errors import ProfileError, UsageError
from autotune.profiles.clamp import clamp_config
from autotune.profiles.factory_arguments import choose_arguments
from autotune.profiles.matching import MatchQuality, compare_hardware
from autotune.profiles.ready_loaders import list_kept, remake_chosen
from autotune.profiles.schema import TunedProfile
from autotune.profiles.selection import describe_local_hardware, nearest_profile
from autotune.profiles.targets import LIBRARIES, NO_RESUMING, Library, find_target, translate
from autotune.profiles.worker_init import make_worker_init
from autotune.system.environment import read_local_world_size
from autotune.system.machine import MachineProfile, read_machine
from autotune.system.versions import read_start_method_in_force

if TYPE_CHECKING:
    from torch.utils.data import DataLoader, Dataset

WORKERS_ONLY: Final = ("prefetch_factor", "persistent_workers", "in_order", "multiprocessing_context")
OnMismatch = Literal["warn", "error", "default"]
Tunable = TypeVar("Tunable")


class TunedLoader:
    """A tuned configuration that fits this machine, ready for training code.

    Attributes:
        profile: The profile it was taken from.
        config: Its configuration, perhaps clamped to what this machine allows.
        fit: `exact`, `compatible`, `clamped`, or `default` when PyTorch's defaults stand in.
    """

    def __init__(self, profile: TunedProfile, config: LoaderConfig, fit: str) -> None:
        self.profile = profile
        self.config = config
        self.fit = fit

    def __repr__(self) -> str:
        return f"TunedLoader(profile={self.profile.name!r}, fit={self.fit!r}, {self.loader_kwargs()})"

    def loader_kwargs(self) -> dict[str, Any]:
        """Give the arguments for `torch.utils.data.DataLoader`.

        Returns:
            Keyword arguments in a combination that DataLoader accepts, to be given beside `dataset` and
            `shuffle`, `sampler`, `drop_last` or `collate_fn`. Without `batch_size` where the workload makes its
            own batches, and without what the user's own class of loaders decides by itself.
        """
        return self.profile.workload.leave_out_decided(self.config.loader_kwargs())

    def kwargs_for(self, to: Library) -> dict[str, Any]:
        """Give the arguments for a library that makes the loader itself, by its own names.

        A warning names each setting that the library has no place for and that nothing else keeps, and what to do.

        Args:
            to: `hf` for `transformers.TrainingArguments`, `accelerate` for `accelerate.utils.DataLoaderConfiguration`
                (its loader is still yours to make), `timm` for `timm.data.create_loader`, `lightning` for a
                LightningDataModule that takes arguments of DataLoader, `statefuldataloader` for torchdata's
                StatefulDataLoader.

        Returns:
            Keyword arguments, to be given beside the library's own.

        Raises:
            UsageError: There is no such library.
        """
        if to not in LIBRARIES:
            raise UsageError(f"{to!r} is none of {', '.join(LIBRARIES)}.")
        target = find_target(to, is_called=True)
        arguments = self._translate(to, beside_make_loader=not target.makes_loader)
        if to == "statefuldataloader" and not self.config.dataloader.in_order:
            warnings.warn(f"{target.reader}: {NO_RESUMING}", stacklevel=2)
        return arguments

    def _translate(self, to: Library, *, beside_make_loader: bool) -> dict[str, Any]:
        """Say the configuration in the words of a library, and warn of what is lost; called by what the user calls."""
        target = find_target(to, is_called=True)
        found = translate(target, self.profile.workload, self.config)
        for setting in found.list_lost(beside_make_loader=beside_make_loader):
            warnings.warn(f"{target.reader}: {setting.describe()}", stacklevel=3)
        return dict(found.arguments)

    @property
    def knobs(self) -> dict[str, Any]:
        """The tuned arguments that `--knob` named, for the factory; empty without, or where defaults stand in."""
        return dict(self.config.knobs)

    def apply_process_settings(self) -> None:
        """Put the sharing strategy in force; call it before the first worker starts."""
        from torch.multiprocessing import set_sharing_strategy

        set_sharing_strategy(self.config.process.sharing_strategy)

    def make_loader(self, source: Dataset[Any] | Callable[..., Any], **own: Any) -> Any:
        """Build the loader, with the process settings applied.

        Args:
            source: The dataset to load; or a class of loaders, or a function that makes one of the settings.
            **own: Further arguments (`shuffle`, `collate_fn`, ...); they win over the tuned ones.

        Returns:
            A DataLoader of the dataset, or what `source` made.
        """
        from torch.utils.data import DataLoader, Dataset

        self.apply_process_settings()
        kwargs = self.loader_kwargs() | own
        if own.get("batch_sampler") is not None and "batch_size" not in own:
            kwargs.pop("batch_size", None)
        workers = kwargs.get("num_workers", self.config.dataloader.num_workers)
        if workers == 0:
            kwargs = {name: value for name, value in kwargs.items() if name in own or name not in WORKERS_ONLY}
        method = kwargs.get("multiprocessing_context") or read_start_method_in_force()
        if workers:
            init = make_worker_init(self.config.process, own.get("worker_init_fn"), are_forked=method == "fork")
            kwargs |= {} if init is None else {"worker_init_fn": init}
        if callable(source) and not isinstance(source, Dataset):
            tuned = self.knobs if self.profile.workload.is_function_made else {}
            return source(**{**tuned, **own, **choose_arguments(source, kwargs)})
        return DataLoader(source, **kwargs)

    def apply_to(self, target: Tunable, **own: Any) -> Tunable:
        """Give a ready loader the tuned settings, or the training loader of a Lightning module.

        Its dataset, sampler, collate function and all else that is no setting stay as they are.

        Args:
            target: A DataLoader; or a LightningDataModule or LightningModule, whose `train_dataloader` gives a loader
                with the tuned settings from now on, whenever Lightning calls it.
            **own: Further arguments of DataLoader; they win over the tuned ones.

        Returns:
            A DataLoader in its place, with the process settings applied; or the module itself.

        Raises:
            UsageError: It is neither, or a loader of a class that is made in a way of its own.
        """
        ask: Any = getattr(target, "train_dataloader", None)
        if callable(ask):
            self._translate("lightning", beside_make_loader=True)
            target.train_dataloader = partial(self._ask_and_remake, ask, own)  # type: ignore[attr-defined]  # it has one
            return target
        return remake_chosen(target, self.profile.workload.split, partial(self._remake, own))  # type: ignore[no-any-return]  # what it was given

    def _ask_and_remake(self, ask: Callable[[], Any], own: dict[str, Any]) -> Any:
        return remake_chosen(ask(), self.profile.workload.split, partial(self._remake, own))

    def _remake(self, own: dict[str, Any], loader: DataLoader[Any]) -> DataLoader[Any]:
        kept = list_kept(loader, self.loader_kwargs() | own)
        remade: DataLoader[Any] = self.make_loader(type(loader), **kept | own)
        return remade


def load(
    path: str | os.PathLike[str] = "dltune.json",
    *,
    profile: str | None = None,
    on_mismatch: OnMismatch = "warn",
    local_world_size: int | None = None,
) -> TunedLoader:
    """Load the tuned configuration that fits this machine.

    Args:
        path: The tuned file.
        profile: Name of a profile; None takes the one that fits best, the newest of equals.
        on_mismatch: What to do when no profile was tuned for a machine like this: `warn` clamps the nearest
            one to what this machine allows and warns, `error` refuses, `default` gives PyTorch's defaults.
        local_world_size: How many training processes share this host; None reads LOCAL_WORLD_SIZE, as torchrun sets
            it. A profile tuned for as many is preferred; another one counts as one of another machine.

    Returns:
        The configuration.

    Raises:
        ProfileError: The file cannot be read or is not valid, has no such profile, or fits no machine like
            this while `on_mismatch` is `error`.
    """
    if on_mismatch not in get_args(OnMismatch):
        raise ProfileError(f"on_mismatch={on_mismatch!r} is none of {', '.join(get_args(OnMismatch))}.")
    machine = read_machine()
    ranks = read_local_world_size() if local_world_size is None else local_world_size
    if ranks < 1:
        raise ProfileError(f"local_world_size={ranks}: at least one process trains.")
    nearest, quality = nearest_profile(Path(path), profile, machine, ranks)
    if quality <= MatchQuality.COMPATIBLE and nearest.workload.nproc_per_node == ranks:
        return TunedLoader(nearest, nearest.config, quality.name.lower())
    lacks = _describe_mismatch(nearest, machine, ranks)
    if on_mismatch == "error":
        raise ProfileError(f"{path}: profile {nearest.name} was tuned {lacks}. Retune here.")
    if on_mismatch == "default":
        plain = LoaderConfig(dataloader=DataLoaderSettings(batch_size=nearest.dataloader.batch_size))
        return TunedLoader(nearest, plain, "default")
    clamped = clamp_config(nearest, machine, ranks)
    warnings.warn(
        f"{path}: profile {nearest.name} was tuned {lacks}. Using {clamped.loader_kwargs()}; retune here for the best.",
        stacklevel=2,
    )
    return TunedLoader(nearest, clamped, "clamped")


def _describe_mismatch(profile: TunedProfile, machine: MachineProfile, ranks: int) -> str:
    """Say what a profile was tuned with that is not here: a larger machine, or as many training processes."""
    found = compare_hardware(profile.hardware, describe_local_hardware(machine, profile))
    lacks = ", ".join(difference.describe() for difference in found if difference.is_shortfall)
    tuned_for = profile.workload.nproc_per_node
    if tuned_for == ranks:
        return f"on another machine: {lacks}"
    others = f"{tuned_for} training processes on the host, not for {ranks}"
    return f"for {others}, and on another machine: {lacks}" if lacks else f"for {others}"
