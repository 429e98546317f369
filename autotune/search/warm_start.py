"""What an earlier result says about where to look, on the same machine or on another one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pydantic import ValidationError

from autotune.config import MAX_WORKERS, FrozenModel, LoaderConfig, Rate
from autotune.errors import ProfileError
from autotune.profiles.matching import compare_hardware
from autotune.profiles.schema import TunedProfile
from autotune.request import TuningRequest
from autotune.system.hardware import Hardware

SEEDS: Final = 3  # of the earlier trials, the best ones are tried again
TRIALS_SHARE: Final = 3  # a warm search may take this part of the trials of a cold one


class PriorObservation(FrozenModel):
    """What a configuration reached in an earlier run, in samples per second."""

    config: LoaderConfig
    samples_per_second: Rate


class WarmStart(FrozenModel):
    """What a search starts from beside its own probe.

    Attributes:
        seeds: What to try first, after the baseline.
        hints: What earlier trials reached on a machine like this; they guide, and are not results.
    """

    seeds: tuple[LoaderConfig, ...]
    hints: tuple[PriorObservation, ...] = ()


def plan_warm_start(profile: TunedProfile, here: Hardware) -> WarmStart:
    """Take from a profile what it says about a search on this machine.

    Args:
        profile: An earlier result.
        here: This machine.

    Returns:
        On a machine like that of the profile: its answer, its best trials, and what all of them reached. On another
        one the answer as it is and with workers in proportion to the CPUs; rates are not carried over.
    """
    if compare_hardware(profile.hardware, here):
        return WarmStart(seeds=_unique([profile.config, scale_workers(profile, here)]))
    trials = profile.evidence.trials if profile.evidence is not None else ()
    hints = [
        PriorObservation(
            config=line.config,
            samples_per_second=line.samples_per_second,
        )
        for line in trials
        if line.outcome == "completed" and line.samples_per_second
    ]
    best = sorted(hints, key=lambda hint: hint.samples_per_second, reverse=True)
    seeds = [profile.config, *(hint.config for hint in best)]
    return WarmStart(seeds=_unique(seeds)[:SEEDS], hints=tuple(hints))


def _unique(configs: Iterable[LoaderConfig]) -> tuple[LoaderConfig, ...]:
    return tuple(dict.fromkeys(configs))


def scale_workers(profile: TunedProfile, here: Hardware) -> LoaderConfig:
    """Give a profile's configuration with as many workers for each CPU of this machine as it had there.

    Args:
        profile: The profile.
        here: This machine.

    Returns:
        The configuration; without workers where it had none.
    """
    loader = profile.dataloader
    if not loader.num_workers:
        return profile.config
    wanted = round(loader.num_workers * here.usable_cpus / profile.hardware.usable_cpus)
    workers = min(max(1, wanted), MAX_WORKERS)
    return profile.config.model_copy(update={"dataloader": loader.model_copy(update={"num_workers": workers})})


def rebuild_request(
    profile: TunedProfile, here: Hardware, output: str, trials: int | None = None, storage: str | None = None
) -> TuningRequest:
    """Make the request that a profile was tuned with anew, for this machine.

    Args:
        profile: The profile.
        here: This machine.
        output: The tuned file.
        trials: Most trials; None takes a third of those that were asked for.
        storage: Optuna storage URL; None takes the one that was asked for.

    Returns:
        The request, for the current folder. On a machine like that of the profile the result takes the profile's
        place; on another one it gets a name of its own.

    Raises:
        ProfileError: The profile does not hold its request, or one that cannot be read.
    """
    if profile.request is None:
        raise ProfileError(
            f"Profile {profile.name} does not hold the request it was tuned with (an earlier version wrote it): "
            "tune once more with dltune --dataset."
        )
    try:
        asked = TuningRequest.model_validate(profile.request)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise ProfileError(
            f"Profile {profile.name}: its request cannot be read ({'.'.join(map(str, problem['loc']))}: "
            f"{problem['msg']}). Tune once more with dltune --dataset."
        ) from None
    is_elsewhere = any(difference.decides for difference in compare_hardware(profile.hardware, here))
    changes = {
        "output": output,
        "profile": None if is_elsewhere else profile.name,
        "trials": trials or max(SEEDS + 1, asked.trials // TRIALS_SHARE),
        "resume": False,
        "study_name": None,
        "storage": storage or asked.storage,
    }
    return asked.forget_folder().model_copy(update=changes)
