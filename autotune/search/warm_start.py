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
    """Return whether a run continues an interrupted one: the same request, on the same machine."""
    asked = {name: value for name, value in plan.request.record().items() if name not in NOT_MEASURED}
    is_same = asked.items() <= earlier.request.items() and earlier.hardware == plan.hardware
    return is_same and not earlier.is_validated


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
        if one.samples_per_second
        and one.outcome in ("completed", "stopped_early")
        and plan.space.nearest(one.config) == one.config
        and one.config not in known
    ]


def plan_warm_start(earlier: TunedProfile, plan: Plan) -> tuple[list[LoaderConfig], dict[LoaderConfig, Observation]]:
    """Return the configurations to try first, and the observations of an earlier run.

    On the same class of machines: its result, its best trials, and the throughputs of all of them. On another class:
    its result, unchanged and with workers in proportion to the CPUs, without throughputs.
    """
    here, there, seeds = plan.hardware, earlier.hardware, [earlier.config]
    observed: dict[LoaderConfig, Observation] = {}
    if there.machine_class == here.machine_class:
        rates = {one.config: one.samples_per_second for one in earlier.search.trials if one.outcome == "completed"}
        observed = {config: Observation(rate, PRIOR_ERROR) for config, rate in rates.items() if rate}
        seeds += sorted(observed, key=lambda config: observed[config].samples_per_second, reverse=True)
    else:
        seeds.append(scale_workers(earlier.config, here.usable_cpus / there.usable_cpus))
    inside = map(plan.space.nearest, list(dict.fromkeys(seeds))[:MAX_SEEDS])
    return [config for config in inside if plan.fits(config)], observed


def scale_workers(config: LoaderConfig, ratio: float) -> LoaderConfig:
    """Return a configuration with this multiple of its workers, at least one if it has any."""
    workers = config.dataloader.num_workers
    scaled = min(max(1, round(workers * ratio)), MAX_WORKERS) if workers else 0
    return config.model_copy(update={"dataloader": config.dataloader.model_copy(update={"num_workers": scaled})})


def rebuild_request(profile: TunedProfile, output: str, trials: int | None = None) -> TuningRequest:
    """Return the request that a profile was tuned with, for another run in the current folder.

    Raises:
        ProfileError: The stored request is invalid.
    """
    changes = {"output": output} if trials is None else {"output": output, "trials": trials}
    try:
        return TuningRequest.model_validate(profile.request | changes).forget_folder()
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        what = f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
        raise ProfileError(f"Profile {profile.id}: its request is invalid ({what}). Tune again with dltune.") from None
