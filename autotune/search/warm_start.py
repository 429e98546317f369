"""What an earlier result says about where to look, on the same machine or on another one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from autotune.config import MAX_WORKERS, LoaderConfig
from autotune.errors import ProfileError
from autotune.profiles.matching import compare_hardware
from autotune.profiles.schema import TunedProfile
from autotune.request import TuningRequest
from autotune.system.hardware import Hardware

MAX_SEEDS: Final = 3  # of the earlier trials, the best ones are tried again
TRIALS_DIVISOR: Final = 3  # a warm search may take this part of the trials of a cold one


@dataclass(frozen=True, slots=True)
class PriorObservation:
    """What a configuration reached in an earlier run, in samples per second."""

    config: LoaderConfig
    samples_per_second: float


@dataclass(frozen=True, slots=True)
class WarmStart:
    """What a search starts from beside its own probe."""

    seeds: tuple[LoaderConfig, ...]  # what to try first, after the baseline
    observations: tuple[PriorObservation, ...] = ()  # of a machine like this; they guide, and are not results


def plan_warm_start(profile: TunedProfile, here: Hardware) -> WarmStart:
    """Take from a profile what it says about a search on this machine.

    On a machine like that of the profile: its answer, its best trials, and what all of them reached. On another one
    the answer as it is and with workers in proportion to the CPUs; rates are not carried over.
    """
    if compare_hardware(profile.hardware, here):
        return start_elsewhere(profile.config, here.usable_cpus / profile.hardware.usable_cpus)
    trials = profile.evidence.trials if profile.evidence is not None else ()
    seen = tuple(
        PriorObservation(line.config, line.samples_per_second)
        for line in trials
        if line.outcome == "completed" and line.samples_per_second
    )
    best = sorted(seen, key=lambda observation: observation.samples_per_second, reverse=True)
    seeds = _unique([profile.config, *(observation.config for observation in best)])
    return WarmStart(seeds[:MAX_SEEDS], seen)


def _unique(configs: Iterable[LoaderConfig]) -> tuple[LoaderConfig, ...]:
    return tuple(dict.fromkeys(configs))


def start_elsewhere(config: LoaderConfig, cpu_ratio: float) -> WarmStart:
    """Try what was best on a machine first, as it is, then for one that has so many times its CPUs."""
    return WarmStart(seeds=_unique([config, scale_workers(config, cpu_ratio)]))


def scale_workers(config: LoaderConfig, cpu_ratio: float) -> LoaderConfig:
    """Give a configuration with so many times its workers; without any it stays as it is."""
    loader = config.dataloader
    if not loader.num_workers:
        return config
    workers = min(max(1, round(loader.num_workers * cpu_ratio)), MAX_WORKERS)
    return config.model_copy(update={"dataloader": loader.model_copy(update={"num_workers": workers})})


def rebuild_request(
    profile: TunedProfile, here: Hardware, output: str, trials: int | None = None, storage: str | None = None
) -> TuningRequest:
    """Make the request that a profile was tuned with anew, for this machine and the current folder.

    On a machine like that of the profile the result takes the profile's place; on another one it gets a name of its
    own. Without a number of trials it takes a third of those that were asked for; without a storage URL, the one that
    was asked for.

    Raises:
        ProfileError: The profile does not hold its request, or one that cannot be read.
    """
    asked = _read_request(profile)
    is_elsewhere = any(difference.requires_retune for difference in compare_hardware(profile.hardware, here))
    changes = {
        "output": output,
        "profile": None if is_elsewhere else profile.name,
        "trials": trials or max(MAX_SEEDS + 1, asked.trials // TRIALS_DIVISOR),
        "resume": False,
        "study_name": None,
        "storage": storage or asked.storage,
    }
    return asked.forget_folder().model_copy(update=changes)


def _read_request(profile: TunedProfile) -> TuningRequest:
    if profile.request is None:
        raise ProfileError(
            f"Profile {profile.name} does not hold the request it was tuned with (an earlier version wrote it): "
            "tune once more with dltune --dataset."
        )
    try:
        return TuningRequest.model_validate(profile.request)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise ProfileError(
            f"Profile {profile.name}: its request cannot be read ({'.'.join(map(str, problem['loc']))}: "
            f"{problem['msg']}). Tune once more with dltune --dataset."
        ) from None
