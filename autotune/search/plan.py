"""Everything that is known before the first trial, in one value."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from autotune.config import Interval, LoaderConfig
from autotune.profiles.identity import WorkloadIdentity
from autotune.request import TuningRequest
from autotune.search.baseline import choose_baseline, describe_changed_baseline
from autotune.search.choices import plan_space
from autotune.search.cost_model import predict_cold_start_seconds, predict_samples_per_second
from autotune.search.defaults import DefaultValues, default_values
from autotune.search.demand import ResourceModel
from autotune.search.initial import initial_configs
from autotune.search.space import SearchSpace
from autotune.system.hardware import Hardware
from autotune.system.machine import MachineProfile
from autotune.trial.budgets import Budgets
from autotune.trial.identity import identify
from autotune.trial.measurement import TrialResult
from autotune.trial.statistics import NORMAL_QUANTILE
from autotune.trial.throughput import ThroughputEstimate, estimate
from autotune.trial.workload_profile import WorkloadProfile

MAX_EXTRAPOLATION_FACTOR: Final = 2  # times the largest batch that was measured; the cost of larger ones is a guess
MAX_CANDIDATES: Final = 30_000  # proposals are chosen among; only knobs of the user's own make a space larger
GUESS_ERROR: Final = 0.25  # of the logarithm of a guess, root mean square; 0.05 to 0.33 on the five recorded grids
STEP_BOUND_TOLERANCE: Final = 1.05  # of the step's bound; a throughput above it shows that it was measured too low


@dataclass(frozen=True, slots=True)
class Guess:
    """What is expected of a configuration before anything was tried."""

    config: LoaderConfig
    samples_per_second: float
    ci95: Interval


@dataclass(frozen=True)
class Plan:
    """What a run has to work with, from what the user asked for to what the answer is compared with.

    Budgets, throughputs and all that is measured are those of one training process, also where several share the host.
    """

    request: TuningRequest
    machine: MachineProfile
    workload: WorkloadProfile
    budgets: Budgets
    space: SearchSpace
    baseline: LoaderConfig

    @property
    def hardware(self) -> Hardware:
        """The fingerprint of the machine."""
        return self.machine.hardware(self.workload.accelerator)

    @property
    def identity(self) -> WorkloadIdentity:
        """The identity of the workload that the probe has looked at."""
        return identify(self.request.workload, self.workload)

    @cached_property
    def local_machine(self) -> MachineProfile:
        """What one of the training processes has of the machine."""
        return self.machine.share(self.request.workload.nproc_per_node)

    @cached_property
    def local_workload(self) -> WorkloadProfile:
        """What one of the training processes goes through."""
        return self.workload.share(self.request.workload.nproc_per_node)

    @property
    def best_upper_bound(self) -> float:
        """The step's bound at its best batch size, in samples per second."""
        return max(self.upper_bound(size) for size in self.space.choices["batch_size"])

    def upper_bound(self, batch_size: int | None) -> float:
        """Give what the step reaches on batches that are always ready, in samples per second."""
        size = batch_size or self.workload.probe_batch_size
        return size / max(1e-9, self.workload.step_cost.per_batch(size))

    def has_reliable_upper_bound(self, config: LoaderConfig, samples_per_second: float) -> bool:
        """Tell whether the step was measured near this batch size, and the throughput does not refute its bound."""
        size = config.dataloader.batch_size or self.workload.probe_batch_size
        measured = size <= MAX_EXTRAPOLATION_FACTOR * max(self.workload.largest_probed, self.workload.probe_batch_size)
        return measured and samples_per_second <= STEP_BOUND_TOLERANCE * self.upper_bound(config.dataloader.batch_size)

    def predict(self, config: LoaderConfig) -> float:
        """Predict the throughput of a configuration, in samples per second."""
        cpus = self.local_machine.usable_cpus
        return predict_samples_per_second(config, self.local_workload, cpus, self.request.epochs)

    def guess(self) -> Guess:
        """Guess the answer from the probe; the baseline stays where nothing is predicted to be faster."""
        config = max((self.baseline, *self.initial_configs()), key=self.predict)
        rate, factor = self.predict(config), math.exp(NORMAL_QUANTILE * GUESS_ERROR)
        return Guess(config, rate, (rate / factor, rate * factor))

    def cold_start_seconds(self, config: LoaderConfig) -> float:
        """Predict what a fresh process pays beyond what a warm trial shows."""
        return predict_cold_start_seconds(config, self.workload, self.local_machine.usable_cpus)

    def estimate(self, result: TrialResult) -> ThroughputEstimate | None:
        """Estimate what a fresh process would reach from a warm trial; None when the trial failed."""
        if result.measurement is None:
            return None
        return estimate(result.measurement, result.config, self.request.epochs, self.cold_start_seconds(result.config))

    @cached_property
    def defaults(self) -> DefaultValues:
        """What settings keep unless leaving it is measured to pay."""
        return default_values(self.request, self.space, self.baseline, pinning=self.workload.pinning)

    def initial_configs(self) -> list[LoaderConfig]:
        """List what is tried first: what is nearest to the baseline in the space, then the cost model's guesses."""
        guesses = initial_configs(
            self.space, self.local_workload, self.local_machine, self.request.epochs, self.budgets
        )
        return list(dict.fromkeys([self.space.nearest(self.baseline), *guesses]))

    @cached_property
    def _legal(self) -> tuple[LoaderConfig, ...]:
        return tuple(self.space.configs(MAX_CANDIDATES))

    @cached_property
    def candidates(self) -> tuple[LoaderConfig, ...]:
        """The configurations that the search may propose: legal, and not predicted to break a limit."""
        model = self.resource_model()
        return tuple(config for config in self._legal if not model.predict(config).find_violations(self.budgets))

    @property
    def left_out(self) -> int:
        """Legal configurations that are predicted to break a limit, and so are never proposed."""
        return len(self._legal) - len(self.candidates)

    def resource_model(self) -> ResourceModel:
        """Give the model that predicts what a configuration would use."""
        return ResourceModel.from_workload(self.workload)


def make_plan(request: TuningRequest, machine: MachineProfile, workload: WorkloadProfile, budgets: Budgets) -> Plan:
    """Plan a run; raises what `plan_space` raises."""
    ranks = request.workload.nproc_per_node
    space = plan_space(request, machine.share(ranks), workload.share(ranks), budgets)
    baseline = choose_baseline(request, workload, space, budgets)
    own = None if workload.baseline is None else workload.baseline.model_copy(update={"knobs": baseline.knobs})
    note = None if own is None else describe_changed_baseline(own, baseline)
    together = f"{ranks} training processes run at once: all that is shown is of each of them" if ranks > 1 else None
    space = replace(space, notes=(*space.notes, *filter(None, (note, together))))
    return Plan(request, machine, workload, budgets, space, baseline)
