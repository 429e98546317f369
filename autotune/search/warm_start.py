"""Warm start: trials of an interrupted run, and first configurations from the profile of an earlier one."""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from autotune.config import LoaderConfig
from autotune.errors import ProfileError
from autotune.planning.plan import Plan
from autotune.planning.resources import ResourceModel
from autotune.profiles.schema import TunedProfile
from autotune.protocol.measurement import TrialResult
from autotune.request import TuningRequest
from autotune.search.trial_record import TrialRecord

MAX_SEEDS: Final = 3  # configurations of an earlier run that are tried first


def read_trials(earlier: TunedProfile | None, plan: Plan) -> list[TrialRecord]:
    """Return the completed trials of an interrupted run on this machine as records."""
    records: list[TrialRecord] = []
    if earlier is None or earlier.is_validated or earlier.hardware != plan.hardware:
        return records
    for one in earlier.search.trials:
        if one.samples_per_second and one.outcome != "failed" and plan.space.nearest(one.config) == one.config:
            peaks = {"peak_host_bytes": one.peak_host_bytes, "peak_shm_bytes": one.peak_shm_bytes}
            record = TrialRecord(
                config=one.config,
                status="measured",
                samples_per_second=one.samples_per_second,
                predicted=one.predicted_samples_per_second,
                relative_error=one.relative_error,
                constraints=ResourceModel(plan.workload).predict(one.config).constraints(plan.budgets)
                | {"works": -1.0},
                result=TrialResult(kind="completed", config=one.config, **peaks),
            )
            records.append(record)
    return records


def choose_seeds(earlier: TunedProfile | None, plan: Plan) -> list[LoaderConfig]:
    """Return the result and the best trials of a complete run on this class of machine, to be tried first."""
    if earlier is None or not earlier.is_validated or earlier.machine_class != plan.hardware.machine_class:
        return []
    completed = [one for one in earlier.search.trials if one.outcome == "completed" and one.samples_per_second]
    best = sorted(completed, key=lambda one: one.samples_per_second or 0.0, reverse=True)
    seeds = dict.fromkeys([earlier.config, *(one.config for one in best)])
    return [config for config in map(plan.space.nearest, list(seeds)[:MAX_SEEDS]) if plan.fits(config)]


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
