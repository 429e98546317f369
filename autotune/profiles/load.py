"""Loads the profile for this machine into training code, without importing torch or the code that a profile names."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args

from autotune.config import DataLoaderSettings, LoaderConfig
from autotune.errors import ProfileError, UsageError
from autotune.profiles.export import Library, translate
from autotune.profiles.loaders import choose_arguments, list_kept, make_worker_init, replace_loader
from autotune.profiles.match import clamp_config, compare_hardware, measure_distance, select_profile
from autotune.profiles.schema import TunedProfile
from autotune.settings import SETTINGS
from autotune.system.machine import Hardware, describe_local_hardware, read_machine
from autotune.system.software import read_local_world_size, read_start_method_in_force

if TYPE_CHECKING:
    from torch.utils.data import DataLoader, Dataset

NEEDS_WORKERS: Final = ("prefetch_factor", "persistent_workers", "in_order", "multiprocessing_context")
OnMismatch = Literal["warn", "error", "default"]
Fit = Literal["exact", "clamped", "default"]
Target = TypeVar("Target")


class TunedLoader:
    """A tuned configuration for this machine.

    Attributes:
        profile: The profile.
        config: Its configuration, scaled down if this machine has less.
        fit: `exact`; `clamped` for a profile of another machine, scaled down to this one; or `default` for PyTorch's
            defaults.
    """

    def __init__(self, profile: TunedProfile, config: LoaderConfig, fit: Fit = "exact") -> None:
        self.profile = profile
        self.config = config
        self.fit = fit

    def __repr__(self) -> str:
        return f"TunedLoader(profile={self.profile.id!r}, fit={self.fit!r}, {self.loader_kwargs()})"

    def loader_kwargs(self) -> dict[str, Any]:
        """Return the arguments for `torch.utils.data.DataLoader`, besides `dataset`, `shuffle` and others.

        `batch_size` is absent if the workload makes its own batches, as are settings that the user's loader rejects.
        """
        return self.profile.workload.accepted(self.config.loader_kwargs())

    def kwargs_for(self, library: Library) -> dict[str, Any]:
        """Return the arguments for a library that makes the loader itself; warns about unsupported settings.

        Args:
            library: `hf` for `transformers.TrainingArguments`, `accelerate` for its `DataLoaderConfiguration` (make the
                loader with `make_loader`), `timm` for `timm.data.create_loader`, `lightning` for a LightningDataModule
                that takes arguments of DataLoader, `statefuldataloader` for torchdata's StatefulDataLoader.
        """
        arguments, notes = translate(self.profile.workload, self.config, library)
        for note in notes:
            warnings.warn(note, stacklevel=2)
        return arguments

    def apply_process_settings(self) -> None:
        """Set the tuned sharing strategy. Call it before workers start."""
        strategy = self.config.process.sharing_strategy
        if strategy != SETTINGS["sharing_strategy"].default:
            from torch.multiprocessing import set_sharing_strategy

            set_sharing_strategy(strategy)

    def make_loader(self, source: Dataset[Any] | Callable[..., Any], **own: Any) -> Any:
        """Make the loader, and apply the process settings.

        Args:
            source: The dataset; or a loader class, or a function of DataLoader settings that returns a loader.
            **own: Further arguments (`shuffle`, `collate_fn`, ...), which replace the tuned ones.

        Raises:
            UsageError: The profile has no batch size, and neither `batch_size` nor `batch_sampler` is given.
        """
        from torch.utils.data import DataLoader, Dataset

        self.apply_process_settings()
        kwargs = self.loader_kwargs() | own
        if own.get("batch_sampler") is not None and "batch_size" not in own:
            kwargs.pop("batch_size", None)
        workers = kwargs.get("num_workers", self.config.dataloader.num_workers)
        if workers == 0:
            kwargs = {name: value for name, value in kwargs.items() if name in own or name not in NEEDS_WORKERS}
        elif workers:
            method = kwargs.get("multiprocessing_context") or read_start_method_in_force()
            init = make_worker_init(self.config.process, own.get("worker_init_fn"), are_forked=method == "fork")
            kwargs |= {} if init is None else {"worker_init_fn": init}
        with warnings.catch_warnings():
            if "num_workers" not in own and self.fit == "exact":  # more workers than CPUs were measured to be faster
                warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
            if callable(source) and not isinstance(source, Dataset):
                return source(**own | choose_arguments(source, kwargs))
            if not {"batch_size", "batch_sampler"} & kwargs.keys():
                raise UsageError(f"Profile {self.profile.id} has no batch size: pass batch_size or batch_sampler.")
            return DataLoader(source, **kwargs)

    def apply_to(self, target: Target, **own: Any) -> Target:
        """Return a loader like the given one with the tuned settings; all other arguments are unchanged.

        Args:
            target: A DataLoader; or a LightningDataModule or LightningModule, whose `train_dataloader` returns a loader
                with the tuned settings from now on.
            **own: Further arguments of DataLoader, which replace the tuned ones.

        Raises:
            UsageError: It is neither, or its class has a constructor of its own.
        """
        make: Any = getattr(target, "train_dataloader", None)
        if not callable(make):
            return self._replace(own, lambda: target)  # type: ignore[no-any-return]  # as it was given
        if self.config.process.device_prefetch:
            warnings.warn(f"device_prefetch=True: {SETTINGS['device_prefetch'].instruction}.", stacklevel=2)
        target.train_dataloader = partial(self._replace, own, make)  # type: ignore[attr-defined]  # it has one
        return target

    def _replace(self, own: dict[str, Any], make: Callable[[], Any]) -> Any:
        def rebuild(loader: DataLoader[Any]) -> Any:
            return self.make_loader(type(loader), **list_kept(loader, self.loader_kwargs() | own) | own)

        return replace_loader(make(), self.profile.workload.split, rebuild)


def load(
    path: str | os.PathLike[str] = "dltune.json",
    *,
    profile: str | None = None,
    on_mismatch: OnMismatch = "warn",
    nproc_per_node: int | None = None,
) -> TunedLoader:
    """Load the tuned configuration for this machine.

    Args:
        path: The tuned file.
        profile: Name of the workload such as `data:make_dataset`, or id or label of a profile; needed if the file has
            profiles of several workloads.
        on_mismatch: If no profile was tuned on this class of machine, `warn` takes the nearest one, scales it down to
            this machine and warns, `error` raises, `default` returns PyTorch's defaults.
        nproc_per_node: Training processes on this host; None reads LOCAL_WORLD_SIZE and the variables of Slurm and MPI.

    Raises:
        ProfileError: The file is not valid, has no such profile, or has several workloads; or no profile was tuned on
            this class of machine and `on_mismatch` is `error`.
    """
    if on_mismatch not in get_args(OnMismatch):
        raise ProfileError(f"on_mismatch={on_mismatch!r} is not one of {', '.join(get_args(OnMismatch))}.")
    processes = read_local_world_size() if nproc_per_node is None else nproc_per_node
    if processes < 1:
        raise ProfileError(f"nproc_per_node={processes} must be at least 1.")
    machine = read_machine()
    found = select_profile(Path(path), profile, machine, processes)
    here, clamped = describe_local_hardware(machine, found.hardware), clamp_config(found, machine, processes)
    is_exact = measure_distance(found.hardware, here) == (False, 0) and found.workload.nproc_per_node == processes
    if is_exact and clamped == found.config:
        return TunedLoader(found, found.config)
    mismatch = _describe_mismatch(found, here, processes)
    if on_mismatch == "error":
        raise ProfileError(f"{path}: profile {found.id} was tuned {mismatch}. Retune here.")
    if on_mismatch == "default":
        plain = LoaderConfig(dataloader=DataLoaderSettings(batch_size=found.dataloader.batch_size))
        return TunedLoader(found, plain, "default")
    tuned = TunedLoader(found, clamped, "clamped")
    warnings.warn(f"{path}: profile {found.id} was tuned {mismatch}. Using {tuned.loader_kwargs()}.", stacklevel=2)
    return tuned


def _describe_mismatch(profile: TunedProfile, here: Hardware, nproc_per_node: int) -> str:
    """Describe for how many processes and on which machine a profile was tuned, if that is not here."""
    tuned_for, parts = profile.workload.nproc_per_node, []
    if tuned_for != nproc_per_node:
        parts.append(f"for {tuned_for} training processes on the host, not for {nproc_per_node}")
    if changed := [str(one) for one in compare_hardware(profile.hardware, here) if one.requires_retune]:
        parts.append(f"on another machine: {', '.join(changed)}")
    return " and ".join(parts) or "with slightly more memory"
