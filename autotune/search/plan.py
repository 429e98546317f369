"""The plan of a run: everything that is known before the first trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from autotune.config import DataLoaderSettings, LoaderConfig
from autotune.profiles.schema import Budgets
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import TuningRequest
from autotune.search.cost_model import (
    SPINNING_WORKERS,
    ResourceModel,
    batch_samples,
    has_spinning_step,
    predict_throughput,
)
from autotune.search.space import SearchSpace, nearest_choice, plan_space
from autotune.settings import SETTINGS, config_from_values, describe_difference, setting_values
from autotune.system.machine import Hardware, MachineProfile, count_whole_cpus

NEAR_OPTIMAL_RATIO: Final = 0.98  # of the best prediction; the fewest workers that reach it are enough
MAX_EXTRAPOLATION_FACTOR: Final = 2  # times the largest batch that was measured; the cost of larger ones is a guess
UPPER_BOUND_TOLERANCE: Final = 1.05  # a throughput this much above the upper bound shows that the bound is too low
SIZES: Final = {"num_workers", "batch_size"}  # settings without a default that fits every workload


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
    hardware: Hardware  # the machine as profiles record it
    local_workload: WorkloadProfile  # the share of one training process
    usable_cpus: float  # of one training process

    @property
    def best_upper_bound(self) -> float:
        """The highest upper bound of all batch sizes, in samples per second."""
        return max(self.upper_bound(size) for size in self.space.choices["batch_size"])

    def upper_bound(self, batch_size: int | None) -> float:
        """Return the throughput if data were always ready, in samples per second."""
        size = batch_size or self.workload.probe_batch_size
        return size / max(1e-9, self.workload.step_cost.at(size))

    def has_reliable_upper_bound(self, config: LoaderConfig, rate: float) -> bool:
        """Return whether the step was measured near this batch size, and a measured rate does not exceed the bound."""
        probed = max(self.workload.largest_probed, self.workload.probe_batch_size)
        is_measured = batch_samples(config, self.workload) <= MAX_EXTRAPOLATION_FACTOR * probed
        return is_measured and rate <= UPPER_BOUND_TOLERANCE * self.upper_bound(config.dataloader.batch_size)

    def predict(self, config: LoaderConfig) -> float:
        """Predict the throughput of a configuration by the cost model, in samples per second."""
        return predict_throughput(config, self.local_workload, self.usable_cpus, self.request.epochs)

    def describe_excess(self, config: LoaderConfig) -> str:
        """Describe the limits that a configuration is predicted to exceed; empty if there is none."""
        return ResourceModel(self.workload).predict(config).describe_excess(self.budgets)

    @cached_property
    def candidates(self) -> tuple[LoaderConfig, ...]:
        """The configurations that the search may propose: legal, and predicted to keep the limits."""
        return tuple(config for config in self.space.configs if not self.describe_excess(config))

    @cached_property
    def default_values(self) -> dict[str, Any]:
        """The values that settings but `SIZES` keep unless a measurement shows that another one is faster."""
        values = {name: setting.recommended for name, setting in SETTINGS.items() if name not in SIZES}
        values |= {name: SETTINGS[name].read(self.baseline) for name in values if SETTINGS[name].changes_training}
        values["pin_memory"] = self.workload.pinning
        choices = self.space.choices
        return {name: value if value in choices[name] else choices[name][0] for name, value in values.items()}

    @cached_property
    def training_values(self) -> dict[str, Any]:
        """The baseline's values of settings that change training; not a batch size that the user asked for."""
        names = [name for name, setting in SETTINGS.items() if setting.changes_training]
        values = {name: self.default_values.get(name, SETTINGS[name].read(self.baseline)) for name in names}
        if self.request.is_asked("batch_size"):
            del values["batch_size"]
        return values

    def list_training_changes(self, config: LoaderConfig) -> list[str]:
        """Return the settings of a configuration that change training unasked."""
        return [name for name, value in self.training_values.items() if SETTINGS[name].read(config) != value]

    def name_baseline(self, config: LoaderConfig) -> str:
        """Name the user's settings with what the request and the limits change in them, as `config` has it."""
        name, own = "your DataLoader's settings", self.workload.baseline
        if own is None:
            name = "PyTorch's defaults"
            own = LoaderConfig(dataloader=DataLoaderSettings(batch_size=config.dataloader.batch_size))
        changes = describe_difference(config, own)
        return f"{name} with {changes}" if changes else name

    def change(self, config: LoaderConfig, values: Mapping[str, Any]) -> LoaderConfig:
        """Return a configuration with other values of some settings."""
        return config_from_values({**setting_values(config), **values}, self.space.start_method)

    def default_variant(self, config: LoaderConfig) -> LoaderConfig:
        """Return the configuration with the same workers and batch size, and defaults otherwise."""
        return self.change(config, self.default_values)

    def keep_order(self, config: LoaderConfig) -> LoaderConfig:
        """Return the same configuration with unchanged training, apart from its batch size."""
        return self.change(config, {name: value for name, value in self.training_values.items() if name not in SIZES})

    def keep_training(self, config: LoaderConfig) -> LoaderConfig:
        """Return the default variant with unchanged training."""
        return self.change(config, {**self.default_values, **self.training_values})

    def initial_configs(self) -> list[LoaderConfig]:
        """Return the configurations to try first, within the limits.

        The baseline comes first, then the numbers of workers that the cost model suggests, then about as many workers
        as CPUs, then every other batch size.
        """
        counts, sizes = self.space.choices["num_workers"], self.space.choices["batch_size"]

        def list_sizes(count: int) -> list[LoaderConfig]:
            params = [{**self.default_values, "num_workers": count, "batch_size": size} for size in sizes]
            return [config for config in map(self.space.from_params, params) if not self.describe_excess(config)]

        baseline, fitting = self.space.nearest(self.baseline), {count: list_sizes(count) for count in counts}
        fastest = {count: max(configs, key=self.predict) for count, configs in fitting.items() if configs}
        if not fastest:
            return [baseline]
        rates = {count: self.predict(config) for count, config in fastest.items()}
        first = [nearest_choice(count, list(fastest)) for count in choose_first_workers(rates, self.workload)]
        cpus = nearest_choice(count_whole_cpus(self.usable_cpus), counts)
        usual = nearest_choice(SETTINGS["batch_size"].recommended, sizes)
        common = [config for config in fitting[cpus] if config.dataloader.batch_size == usual]
        return list(dict.fromkeys([baseline, *(fastest[count] for count in first), *common, *fitting[first[0]]]))


def choose_first_workers(rates: dict[int, float], workload: WorkloadProfile) -> list[int]:
    """Return the numbers of workers to try first, from the predicted throughput of each.

    The fewest that are predicted to be nearly the fastest come first, then half and 1.5 times as many, because the
    model may be wrong by a factor of two; many more with a step whose threads spin.
    """
    enough = min(count for count, rate in rates.items() if rate >= NEAR_OPTIMAL_RATIO * max(rates.values()))
    more = max(round(1.5 * enough), SPINNING_WORKERS if has_spinning_step(workload) else 0)
    return [enough, round(0.5 * enough), more]


def make_plan(request: TuningRequest, machine: MachineProfile, workload: WorkloadProfile, budgets: Budgets) -> Plan:
    """Plan a run; raises the errors of `plan_space`.

    The baseline is the user's ready DataLoader, changed only as far as the request and the limits demand, because it
    may be recommended; else PyTorch's defaults, at a batch size of 32.
    """
    processes, own, start_method = request.workload.nproc_per_node, workload.baseline, workload.multiprocessing_context
    local_machine, local_workload = machine.per_rank(processes), workload.per_rank(processes)
    space = plan_space(request, local_machine, local_workload, budgets)
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
        fitting = (one for one in tried if not ResourceModel(workload).predict(one).describe_excess(budgets))
        baseline = next(fitting, tried[0])
    if processes > 1:
        notes.append(f"{processes} training processes run at once: all values are for each of them")
    hardware, cpus = machine.hardware(workload.accelerator), local_machine.usable_cpus
    space = replace(space, notes=tuple(notes))
    return Plan(request, machine, workload, budgets, space, baseline, hardware, local_workload, cpus)
