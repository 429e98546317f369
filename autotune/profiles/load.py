"""Picks the profile that fits the machine it is read on, and makes it ready for training code.

Loading never imports the module a profile names, and needs neither torch nor optuna nor click.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from autotune.config import DataLoaderSettings, LoaderConfig
from autotune.errors import ProfileError
from autotune.profiles.file import read_file
from autotune.profiles.matching import MatchQuality, compare_hardware, rank_fit
from autotune.profiles.schema import TunedFile, TunedProfile
from autotune.profiles.worker_init import WorkerSetup
from autotune.system.gpus import may_have, read_gpus
from autotune.system.hardware import Accelerator, Hardware
from autotune.system.kernel_files import DEV
from autotune.system.machine import MachineProfile, read_machine
from autotune.system.versions import read_start_method_in_force

if TYPE_CHECKING:
    from torch.utils.data import DataLoader, Dataset

SHM_SHARE: Final = 0.8  # of /dev/shm that a clamped configuration may fill
MEMORY_SHARE: Final = 0.8  # of the memory, likewise
BASE_FILES: Final = 128  # open files of the process itself and of the batches in flight
WORKER_FILES: Final = 8  # open files that each worker costs the training process
WORKERS_ONLY: Final = ("prefetch_factor", "persistent_workers", "in_order", "multiprocessing_context")
OnMismatch = Literal["warn", "error", "default"]


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
            own batches.
        """
        return self.config.loader_kwargs()

    def apply_process_settings(self) -> None:
        """Put the sharing strategy in force; call it before the first worker starts."""
        from torch.multiprocessing import set_sharing_strategy

        set_sharing_strategy(self.config.process.sharing_strategy)

    def make_loader(self, dataset: Dataset[Any], **own: Any) -> DataLoader[Any]:
        """Build the loader, with the process settings applied.

        Args:
            dataset: The dataset to load.
            **own: Further arguments of DataLoader (`shuffle`, `collate_fn`, ...); they win over the tuned ones.

        Returns:
            A DataLoader.
        """
        from torch.utils.data import DataLoader

        self.apply_process_settings()
        kwargs = self.loader_kwargs() | own
        if own.get("batch_sampler") is not None and "batch_size" not in own:
            kwargs.pop("batch_size", None)
        if kwargs["num_workers"] == 0:
            kwargs = {name: value for name, value in kwargs.items() if name in own or name not in WORKERS_ONLY}
        method = kwargs.get("multiprocessing_context") or read_start_method_in_force()
        if kwargs["num_workers"] and method != "fork":
            kwargs["worker_init_fn"] = WorkerSetup(self.config.process.sharing_strategy, own.get("worker_init_fn"))
        return DataLoader(dataset, **kwargs)


def load(
    path: str | os.PathLike[str] = "dltune.json", *, profile: str | None = None, on_mismatch: OnMismatch = "warn"
) -> TunedLoader:
    """Load the tuned configuration that fits this machine.

    Args:
        path: The tuned file.
        profile: Name of a profile; None takes the one that fits best, the newest of equals.
        on_mismatch: What to do when no profile was tuned for a machine like this: `warn` clamps the nearest
            one to what this machine allows and warns, `error` refuses, `default` gives PyTorch's defaults.

    Returns:
        The configuration.

    Raises:
        ProfileError: The file cannot be read or is not valid, has no such profile, or fits no machine like
            this while `on_mismatch` is `error`.
    """
    if on_mismatch not in get_args(OnMismatch):
        raise ProfileError(f"on_mismatch={on_mismatch!r} is none of {', '.join(get_args(OnMismatch))}.")
    tuned = _choose_named(read_file(Path(path)), profile, path)
    machine = read_machine()
    nearest, rank = pick_fitting(tuned, machine)
    if rank <= MatchQuality.COMPATIBLE:
        return TunedLoader(nearest, nearest.config, "exact" if rank == MatchQuality.EXACT else "compatible")
    found = compare_hardware(nearest.hardware, describe_local_hardware(machine, nearest))
    differences = ", ".join(difference.describe() for difference in found if difference.is_less)
    if on_mismatch == "error":
        raise ProfileError(f"{path}: profile {nearest.name} was tuned on another machine: {differences}. Retune here.")
    if on_mismatch == "default":
        plain = LoaderConfig(dataloader=DataLoaderSettings(batch_size=nearest.dataloader.batch_size))
        return TunedLoader(nearest, plain, "default")
    clamped = clamp_config(nearest, machine)
    warnings.warn(
        f"{path}: profile {nearest.name} was tuned on another machine: {differences}. "
        f"Using {clamped.loader_kwargs()}; retune here for the best.",
        stacklevel=2,
    )
    return TunedLoader(nearest, clamped, "clamped")


def list_profiles(path: Path, name: str | None = None) -> list[TunedProfile]:
    """List the profiles of a tuned file.

    Args:
        path: The tuned file.
        name: Only those of this name; None for all.

    Returns:
        At least one.

    Raises:
        ProfileError: The file cannot be read or is not valid, or has none such.
    """
    return _choose_named(read_file(path), name, path)


def choose_profile(path: Path, name: str | None = None) -> TunedProfile:
    """Choose one profile of a tuned file, as it was tuned.

    Args:
        path: The tuned file.
        name: Name of the profile; None takes the only one, or else the one that fits this machine.

    Returns:
        The profile, whether or not it fits this machine.

    Raises:
        ProfileError: The file cannot be read or is not valid, has no such profile, or several and none that fits.
    """
    tuned = _choose_named(read_file(path), name, path)
    if len(tuned) == 1:
        return tuned[0]
    found, rank = pick_fitting(tuned, read_machine())
    if rank > MatchQuality.COMPATIBLE:
        known = ", ".join(profile.name for profile in tuned)
        raise ProfileError(f"{path} holds {known}; none was tuned for a machine like this. Name one with --profile.")
    return found


def pick_fitting(profiles: Sequence[TunedProfile], machine: MachineProfile) -> tuple[TunedProfile, MatchQuality]:
    """Pick the profile that fits a machine best, the newest of equals.

    Args:
        profiles: At least one.
        machine: The machine.

    Returns:
        The profile, and how well it fits.
    """
    ranked = [(rank_fit(one, describe_local_hardware(machine, one)), one) for one in profiles]
    rank, best = min(ranked, key=lambda pair: (pair[0], -pair[1].created_at.timestamp()))
    return best, rank


def describe_local_hardware(
    machine: MachineProfile, profile: TunedProfile, *, gpus: Sequence[str] | None = None, dev: Path = DEV
) -> Hardware:
    """Describe this machine by what a profile is bound to.

    Args:
        machine: This machine.
        profile: On a machine with accelerators of several models, those of the profile's model count. One that can
            be known by torch alone is taken for the profile's, and for as many, where it may be.
        gpus: Names of the GPUs that the driver lists; None reads them.
        dev: Where the device files lie.

    Returns:
        The fingerprint.
    """
    there = profile.hardware.gpu
    listed = read_gpus() if gpus is None else gpus
    if not listed and there and may_have(there, dev):
        return machine.hardware(Accelerator(name=there, count=profile.hardware.gpu_count))
    names = [there if there and _may_be(gpu, there) else gpu for gpu in listed]
    gpu = there if there in names else next(iter(names), None)
    return machine.hardware(None if gpu is None else Accelerator(name=gpu, count=names.count(gpu)))


def _may_be(gpu: str, there: str) -> bool:
    """Tell whether the slice of a GPU that is visible may be the one that was tuned on."""
    return gpu.endswith(" MIG") and there.startswith(f"{gpu} ")


def _choose_named(file: TunedFile, name: str | None, path: str | os.PathLike[str]) -> list[TunedProfile]:
    named = [profile for profile in file.profiles if name is None or profile.name == name]
    if named:
        return named
    if not file.profiles:
        raise ProfileError(f"{path} holds no profile. Write one with dltune --dataset pkg.mod:make_ds.")
    known = ", ".join(profile.name for profile in file.profiles)
    raise ProfileError(f"{path} holds no profile named {name!r}; it holds {known}.")


def clamp_config(profile: TunedProfile, here: MachineProfile) -> LoaderConfig:
    """Reduce a configuration to what a smaller machine can bear.

    Args:
        profile: A profile tuned elsewhere.
        here: This machine.

    Returns:
        The configuration with as many workers for each CPU as it had there, and fewer where memory, open files or
        /dev/shm ask for it; batches ahead are given up before workers. Never more of anything than was tuned.
    """
    settings = profile.dataloader
    batch_bytes = profile.workload.sample_bytes * (settings.batch_size or 1)
    queue = _count_fitting_batches(batch_bytes, here.shm_limit_bytes)
    bounds = [settings.num_workers, _share_workers(profile, here), (here.nofile_limit - BASE_FILES) // WORKER_FILES]
    workers = max(0, min([*bounds, *([queue] if queue is not None else [])]))
    prefetch = settings.prefetch_factor or 1
    if workers and queue is not None:
        prefetch = min(prefetch, queue // workers)
    keeps = {"prefetch_factor": prefetch, "persistent_workers": settings.persistent_workers}
    clamped = DataLoaderSettings(
        batch_size=settings.batch_size,
        num_workers=workers,
        pin_memory=settings.pin_memory,
        **(keeps | {"in_order": settings.in_order} if workers else {}),
    )
    return LoaderConfig(dataloader=clamped, process=profile.process)


def _share_workers(profile: TunedProfile, here: MachineProfile) -> int:
    """Take workers in proportion to the CPUs, rounded up, and to the memory that the tuned ones filled."""
    there, peak = profile.hardware, profile.result.peak_host_bytes
    by_cpus = math.ceil(profile.dataloader.num_workers * min(1.0, here.usable_cpus / there.usable_cpus))
    by_memory = MEMORY_SHARE * here.memory_limit_bytes / peak if peak else 1.0
    return min(by_cpus, int(profile.dataloader.num_workers * min(1.0, by_memory)))


def _count_fitting_batches(batch_bytes: int, shm_bytes: int) -> int | None:
    """Count the batches that may lie ahead in /dev/shm beside the two in use; None where their size is not known."""
    return int(shm_bytes * SHM_SHARE) // batch_bytes - 2 if batch_bytes else None
