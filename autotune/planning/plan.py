"""The plan of a run: everything that is known before the first trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from autotune.config import DataLoaderSettings, LoaderConfig, StartMethod
from autotune.planning.cost_model import batch_samples, predict_samples_per_second
from autotune.planning.resources import ResourceModel
from autotune.planning.space import SearchSpace, nearest_choice, plan_space
from autotune.profiles.schema import WorkloadIdentity
from autotune.protocol.budgets import Budgets
from autotune.protocol.measurement import TrialResult
from autotune.protocol.throughput import ThroughputEstimate, estimate
from autotune.protocol.workload_profile import WorkloadProfile, identify
from autotune.request import TuningRequest
from autotune.settings import SETTINGS, config_from_values, describe_difference, differing_settings, setting_values
from autotune.system.machine import Hardware, MachineProfile, count_whole_cpus

MAX_EXTRAPOLATION_FACTOR: Final = 2  # times the largest batch that was measured; the cost of larger ones is a guess
GUESS_ERROR: Final = 0.25  # of the logarithm of a guess, root mean square; 0.05 to 0.33 on the five recorded grids
UPPER_BOUND_TOLERANCE: Final = 1.05  # a throughput this much above the upper bound shows that the bound is too low
INITIAL_WORKER_FACTORS: Final = (1.0, 0.5, 1.5)  # of the number of workers that the model predicts to be enough
NEAR_OPTIMAL_RATIO: Final = 0.98  # of the best prediction; the fewest workers that reach it are enough
SIZES: Final = ("num_workers", "batch_size")  # settings without a default that fits every workload


@dataclass(frozen=True, slots=True)
class DefaultValues:
    """The values that settings keep unless a measurement shows that another one is faster.

    Attributes:
        values: Of every setting but the number of workers and the batch size.
        training: Of every setting that changes training and that the user did not ask for: its value in the baseline.
        start_method: Start method of the workers.
    """

    values: Mapping[str, Any]
    training: Mapping[str, Any]
    start_method: StartMethod | None = None

    def list_non_defaults(self, config: LoaderConfig) -> tuple[str, ...]:
        """Return the settings of a configuration that are not at their default."""
        return differing_settings(config, self.default_variant(config))

    def list_training_changes(self, config: LoaderConfig) -> tuple[str, ...]:
        """Return the settings of a configuration that change training unasked."""
        return tuple(name for name, value in self.training.items() if SETTINGS[name].read(config) != value)

    def default_variant(self, config: LoaderConfig) -> LoaderConfig:
        """Return the configuration with the same workers and batch size, and defaults otherwise."""
        return self._change(config, self.values)

    def keep_order(self, config: LoaderConfig) -> LoaderConfig:
        """Return the same configuration with unchanged training, apart from its batch size."""
        return self._change(config, {name: value for name, value in self.training.items() if name not in SIZES})

    def keep_training(self, config: LoaderConfig) -> LoaderConfig:
        """Return the default variant with unchanged training."""
        return self._change(config, {**self.values, **self.training})

    def _change(self, config: LoaderConfig, values: Mapping[str, Any]) -> LoaderConfig:
        return config_from_values({**setting_values(config), **values}, self.start_method)


@dataclass(frozen=True)
class Plan:
    """Request, machine, workload and limits of a run, its search space and its baseline.

    Limits and throughputs are those of one training process, also if several share the host.
    """

    request: TuningRequest
    machine: MachineProfile
    workload: WorkloadProfile
    budgets: Budgets
    space: SearchSpace
    baseline: LoaderConfig

    @property
    def hardware(self) -> Hardware:
        """The machine as profiles record it."""
        return self.machine.hardware(self.workload.accelerator)

    @property
    def identity(self) -> WorkloadIdentity:
        """The workload as profiles record it."""
        return identify(self.request.workload, self.workload)

    @cached_property
    def local_machine(self) -> MachineProfile:
        """The share of one training process in the machine."""
        return self.machine.share(self.request.workload.nproc_per_node)

    @cached_property
    def local_workload(self) -> WorkloadProfile:
        """The share of one training process in the workload."""
        return self.workload.share(self.request.workload.nproc_per_node)

    @property
    def best_upper_bound(self) -> float:
        """The highest upper bound of all batch sizes, in samples per second."""
        return max(self.upper_bound(size) for size in self.space.choices["batch_size"])

    def upper_bound(self, batch_size: int | None) -> float:
        """Return the throughput if data were always ready, in samples per second."""
        size = batch_size or self.workload.probe_batch_size
        return size / max(1e-9, self.workload.step_cost.per_batch(size))

    def has_reliable_upper_bound(self, config: LoaderConfig, rate: float) -> bool:
        """Return whether the step was measured near this batch size, and a measured rate does not exceed the bound."""
        probed = max(self.workload.largest_probed, self.workload.probe_batch_size)
        is_measured = batch_samples(config, self.workload) <= MAX_EXTRAPOLATION_FACTOR * probed
        return is_measured and rate <= UPPER_BOUND_TOLERANCE * self.upper_bound(config.dataloader.batch_size)

    def predict(self, config: LoaderConfig) -> float:
        """Predict the throughput of a configuration by the cost model, in samples per second."""
        cpus = self.local_machine.usable_cpus
        return predict_samples_per_second(config, self.local_workload, cpus, self.request.epochs)

    def estimate(self, result: TrialResult) -> ThroughputEstimate | None:
        """Estimate the throughput of a run from a trial; None without a measurement."""
        if result.measurement is None:
            return None
        return estimate(result.measurement, result.config, self.request.epochs)

    @cached_property
    def defaults(self) -> DefaultValues:
        """The values that settings keep unless a measurement shows that another one is faster."""
        training = {name: one.read(self.baseline) for name, one in SETTINGS.items() if one.changes_training}
        wanted = {name: one.recommended for name, one in SETTINGS.items() if name not in SIZES}
        wanted |= {"pin_memory": self.workload.pinning} | {name: training[name] for name in training if name in wanted}
        choices = self.space.choices
        values = {name: value if value in choices[name] else choices[name][0] for name, value in wanted.items()}
        kept = {name: values.get(name, value) for name, value in training.items()}
        if self.request.is_asked("batch_size"):
            del kept["batch_size"]
        return DefaultValues(values, kept, self.space.start_method)

    def initial_configs(self) -> list[LoaderConfig]:
        """Return the configurations to try first, within the limits.

        The baseline comes first, then the best number of workers by the cost model with fewer and more of them, because
        the model may be wrong by a factor of two, then as many workers as CPUs, then every other batch size.
        """
        counts, sizes = self.space.choices["num_workers"], self.space.choices["batch_size"]

        def make(count: int, size: int | None) -> LoaderConfig:
            return self.space.from_params({**self.defaults.values, "num_workers": count, "batch_size": size})

        baseline, fastest = self.space.nearest(self.baseline), dict[int, LoaderConfig]()
        for count in counts:
            if fitting := [config for size in sizes if self.fits(config := make(count, size))]:
                fastest[count] = max(fitting, key=self.predict)
        if not fastest:
            return [baseline]
        rates = {count: self.predict(config) for count, config in fastest.items()}
        enough = min(count for count, rate in rates.items() if rate >= NEAR_OPTIMAL_RATIO * max(rates.values()))
        around = [fastest[nearest_choice(round(enough * factor), list(fastest))] for factor in INITIAL_WORKER_FACTORS]
        cpus = nearest_choice(count_whole_cpus(self.local_machine.usable_cpus), counts)
        common = make(cpus, nearest_choice(SETTINGS["batch_size"].recommended, sizes))
        others = filter(self.fits, [common, *(make(enough, size) for size in sizes)])
        return list(dict.fromkeys([baseline, *around, *others]))

    @cached_property
    def candidates(self) -> tuple[LoaderConfig, ...]:
        """The configurations that the search may propose: legal, and predicted to keep the limits."""
        return tuple(filter(self.fits, self.space.configs))

    def fits(self, config: LoaderConfig) -> bool:
        """Return whether a configuration is predicted to keep the limits."""
        return ResourceModel(self.workload).fits(config, self.budgets)

    def describe_excess(self, config: LoaderConfig) -> str:
        """Describe the limits that a configuration is predicted to exceed; empty if there is none."""
        return ResourceModel(self.workload).predict(config).describe_excess(self.budgets)


def make_plan(request: TuningRequest, machine: MachineProfile, workload: WorkloadProfile, budgets: Budgets) -> Plan:
    """Plan a run; raises the errors of `plan_space`.

    The baseline is the user's ready DataLoader, changed only as far as the request and the limits demand, because it
    may be recommended; else PyTorch's defaults, at a batch size of 32.
    """
    processes, own, start_method = request.workload.nproc_per_node, workload.baseline, workload.multiprocessing_context
    space = plan_space(request, machine.share(processes), workload.share(processes), budgets)
    notes, size = list(space.notes), SETTINGS["batch_size"].recommended
    baseline = space.nearest(LoaderConfig(dataloader=DataLoaderSettings(batch_size=size)))
    if own is not None:
        values, names = setting_values(own), {*request.fixed, *request.search, "batch_size"}
        if isinstance(request.search.get("batch_size"), tuple) and len(space.choices["batch_size"]) > 1:
            names.remove("batch_size")  # a list of sizes keeps the user's own
        values |= {name: nearest_choice(values[name], space.choices[name]) for name in names}
        most = min(values["num_workers"], values["num_workers"] if request.max_workers is None else request.max_workers)
        counts = [most, *(count for count in reversed(space.choices["num_workers"]) if count < most)]
        tried = [config_from_values({**values, "num_workers": count}, start_method) for count in counts]
        baseline = next((config for config in tried if ResourceModel(workload).fits(config, budgets)), tried[0])
        if changes := describe_difference(baseline, own):
            notes.append(f"the baseline is your DataLoader with {changes}: the request and the limits apply to it, too")
    if processes > 1:
        notes.append(f"{processes} training processes run at once: all values are for each of them")
    return Plan(request, machine, workload, budgets, replace(space, notes=tuple(notes)), baseline)
