"""Warm start: seeds and observations from the profile of an earlier run."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from pydantic import ValidationError

from autotune.config import MAX_WORKERS, LoaderConfig
from autotune.errors import ProfileError
from autotune.profiles.schema import TunedProfile
from autotune.request import TuningRequest
from autotune.search.plan import Plan
from autotune.search.surrogate import Observation
from autotune.search.trial_record import TrialRecord
from autotune.trial.measurement import TrialResult

MAX_SEEDS: Final = 3  # best trials of an earlier run that are tried again
PRIOR_ERROR: Final = 0.2  # relative half-width of a rate of an earlier run: the machine and versions drift
NOT_MEASURED: Final = frozenset({"trials", "timeout_seconds"})  # fields of a request that do not change measurements


def is_continued(earlier: TunedProfile, plan: Plan) -> bool:
    """Return whether a run continues an earlier one: the same request on the same machine, not validated."""
    asked, stored = plan.request.record(), earlier.request
    is_same = all(stored.get(name) == value for name, value in asked.items() if name not in NOT_MEASURED)
    return is_same and earlier.hardware == plan.hardware and not earlier.is_validated


def take_over(earlier: TunedProfile, plan: Plan, known: Container[LoaderConfig]) -> list[TrialRecord]:
    """Return the trials that an interrupted run measured as records of the run that continues it."""
    return [
        TrialRecord(
            number=number,
            config=one.config,
            status="measured",
            samples_per_second=one.samples_per_second,
            predicted=one.predicted_samples_per_second,
            relative_error=one.relative_error,
            constraints=plan.resource_model().predict(one.config).constraints(plan.budgets) | {"works": -1.0},
            result=TrialResult(
                kind="completed",
                config=one.config,
                peak_host_bytes=one.peak_host_bytes,
                peak_shm_bytes=one.peak_shm_bytes,
            ),
        )
        for number, one in enumerate(earlier.search.trials)
        if one.samples_per_second and plan.space.nearest(one.config) == one.config and one.config not in known
    ]


def plan_warm_start(earlier: TunedProfile, plan: Plan) -> tuple[list[LoaderConfig], dict[LoaderConfig, Observation]]:
    """Return the configurations to try first, and the observations of an earlier run.

    On the same class of machines: its result, its best trials, and the throughputs of all of them. On another class:
    its result, unchanged and with workers in proportion to the CPUs, without throughputs.
    """
    here = plan.hardware
    if earlier.machine_class != here.machine_class:
        ratio = here.usable_cpus / earlier.hardware.usable_cpus
        return _within([earlier.config, scale_workers(earlier.config, ratio)], plan), {}
    observed = {
        one.config: Observation(one.samples_per_second, PRIOR_ERROR)
        for one in earlier.search.trials
        if one.outcome == "completed" and one.samples_per_second
    }
    best = sorted(observed, key=lambda config: observed[config].samples_per_second, reverse=True)
    return _within(list(dict.fromkeys([earlier.config, *best]))[:MAX_SEEDS], plan), observed


def _within(seeds: list[LoaderConfig], plan: Plan) -> list[LoaderConfig]:
    return list(dict.fromkeys(config for config in map(plan.space.nearest, seeds) if plan.fits(config)))


def scale_workers(config: LoaderConfig, ratio: float) -> LoaderConfig:
    """Return a configuration with this multiple of its workers."""
    loader = config.dataloader
    if not loader.num_workers:
        return config
    workers = min(max(1, round(loader.num_workers * ratio)), MAX_WORKERS)
    return config.model_copy(update={"dataloader": loader.model_copy(update={"num_workers": workers})})


def rebuild_request(profile: TunedProfile, output: str, trials: int | None = None) -> TuningRequest:
    """Return the request that a profile was tuned with, for another run in the current folder.

    Raises:
        ProfileError: The stored request is invalid.
    """
    try:
        request = TuningRequest.model_validate(profile.request | {"output": output})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(map(str, problem["loc"]))
        raise ProfileError(
            f"Profile {profile.id}: its request is invalid ({place}: {problem['msg']}). Tune again with dltune --dataset."
        ) from None
    return request.forget_folder() if trials is None else request.forget_folder().model_copy(update={"trials": trials})
