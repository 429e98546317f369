"""Picks the profile that fits the machine it is read on, and makes it ready for training code.

Loading never imports the module a profile names, and needs neither torch nor optuna nor click.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from autotune.errors import ProfileError
from autotune.machine import MachineProfile, count_whole_cpus, read_gpus, read_machine
from autotune.schema import DataLoaderSettings, LoaderConfig, TunedConfig, TunedFile
from autotune.tuned_file import read_file
from autotune.units import format_bytes
from autotune.worker_setup import WorkerSetup

if TYPE_CHECKING:
    from torch.utils.data import DataLoader, Dataset

SHM_SHARE: Final = 0.8  # of /dev/shm that a clamped configuration may fill
WORKERS_ONLY: Final = ("prefetch_factor", "persistent_workers", "in_order", "multiprocessing_context")
OnMismatch = Literal["warn", "error", "default"]


class TunedLoader:
    """A tuned configuration that fits this machine, ready for training code.

    Attributes:
        profile: The profile it was taken from.
        config: Its configuration, perhaps clamped to what this machine allows.
        fit: `exact`, `compatible`, `clamped`, or `default` when PyTorch's defaults stand in.
    """

    def __init__(self, profile: TunedConfig, config: LoaderConfig, fit: str) -> None:
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
        import multiprocessing

        from torch.utils.data import DataLoader

        self.apply_process_settings()
        kwargs = self.loader_kwargs() | own
        if own.get("batch_sampler") is not None and "batch_size" not in own:
            kwargs.pop("batch_size", None)
        if kwargs["num_workers"] == 0:
            kwargs = {name: value for name, value in kwargs.items() if name in own or name not in WORKERS_ONLY}
        method = kwargs.get("multiprocessing_context") or multiprocessing.get_start_method()
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
    machine, gpus = read_machine(), read_gpus()
    found = _find_fitting(tuned, machine, gpus)
    if found is not None:
        best, fit = found
        return TunedLoader(best, best.config, fit)
    nearest = max(tuned, key=lambda candidate: (_has_gpu(candidate, gpus), candidate.created_at))
    differences = _describe_differences(nearest, machine, gpus)
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


def choose_profile(path: Path, name: str | None = None) -> TunedConfig:
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
    found = _find_fitting(tuned, read_machine(), read_gpus())
    if found is None:
        known = ", ".join(profile.name for profile in tuned)
        raise ProfileError(f"{path} holds {known}; none was tuned for a machine like this. Name one with --profile.")
    return found[0]


def _find_fitting(
    tuned: list[TunedConfig], machine: MachineProfile, gpus: tuple[str, ...]
) -> tuple[TunedConfig, str] | None:
    """Find the newest profile of a machine like this, else of a smaller one, and say which of them it is."""
    for fits, name in ((_is_exact, "exact"), (_is_compatible, "compatible")):
        fitting = [candidate for candidate in tuned if fits(candidate, machine, gpus)]
        if fitting:
            return max(fitting, key=lambda candidate: candidate.created_at), name
    return None


def _choose_named(file: TunedFile, name: str | None, path: str | os.PathLike[str]) -> list[TunedConfig]:
    named = [profile for profile in file.profiles if name is None or profile.name == name]
    if named:
        return named
    if not file.profiles:
        raise ProfileError(f"{path} holds no profile. Write one with dltune --dataset pkg.mod:make_ds.")
    known = ", ".join(profile.name for profile in file.profiles)
    raise ProfileError(f"{path} holds no profile named {name!r}; it holds {known}.")


def _has_gpu(profile: TunedConfig, gpus: tuple[str, ...]) -> bool:
    wanted = profile.hardware.gpu
    return not gpus if wanted is None else wanted in gpus


def _is_exact(profile: TunedConfig, machine: MachineProfile, gpus: tuple[str, ...]) -> bool:
    there = profile.hardware
    return (
        _has_gpu(profile, gpus)
        and there.gpu_count == len(gpus)
        and there.cpu == machine.cpu
        and there.usable_cpus == machine.usable_cpus
        and there.memory_limit_bytes == machine.memory_limit_bytes
        and there.shm_limit_bytes == machine.shm_limit_bytes
        and there.nofile_limit == machine.nofile_limit
    )


def _is_compatible(profile: TunedConfig, machine: MachineProfile, gpus: tuple[str, ...]) -> bool:
    there = profile.hardware
    return (
        _has_gpu(profile, gpus)
        and machine.usable_cpus >= there.usable_cpus
        and machine.memory_limit_bytes >= there.memory_limit_bytes
        and machine.shm_limit_bytes >= there.shm_limit_bytes
        and machine.nofile_limit >= there.nofile_limit
    )


def _describe_differences(profile: TunedConfig, machine: MachineProfile, gpus: tuple[str, ...]) -> str:
    there = profile.hardware
    here_gpu = gpus[0] if gpus else "no GPU"
    pairs = (
        ("GPU", there.gpu or "no GPU", here_gpu, not _has_gpu(profile, gpus)),
        ("CPUs", f"{there.usable_cpus:g}", f"{machine.usable_cpus:g}", machine.usable_cpus < there.usable_cpus),
        (
            "memory",
            format_bytes(there.memory_limit_bytes),
            format_bytes(machine.memory_limit_bytes),
            machine.memory_limit_bytes < there.memory_limit_bytes,
        ),
        (
            "/dev/shm",
            format_bytes(there.shm_limit_bytes),
            format_bytes(machine.shm_limit_bytes),
            machine.shm_limit_bytes < there.shm_limit_bytes,
        ),
        ("open files", there.nofile_limit, machine.nofile_limit, machine.nofile_limit < there.nofile_limit),
    )
    return ", ".join(f"{name} {here} instead of {was}" for name, was, here, differs in pairs if differs)


def clamp_config(profile: TunedConfig, machine: MachineProfile) -> LoaderConfig:
    """Reduce a configuration to what a smaller machine can bear.

    Args:
        profile: A profile tuned elsewhere.
        machine: This machine.

    Returns:
        The configuration with at most as many workers as usable CPUs, and with fewer batches ahead, then fewer
        workers, until they fit into /dev/shm.
    """
    settings = profile.dataloader
    workers = min(settings.num_workers, count_whole_cpus(machine.usable_cpus))
    batch_bytes = profile.workload.sample_bytes * (settings.batch_size or 1)
    queue = _count_fitting_batches(batch_bytes, machine.shm_limit_bytes)
    workers = max(0, workers if queue is None else min(workers, queue))
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


def _count_fitting_batches(batch_bytes: int, shm_bytes: int) -> int | None:
    """Count the batches that may lie ahead in /dev/shm beside the two in use; None where their size is not known."""
    return int(shm_bytes * SHM_SHARE) // batch_bytes - 2 if batch_bytes else None
