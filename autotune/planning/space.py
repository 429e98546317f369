"""Search space: the choices of each setting that request, machine and workload allow."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from pydantic import ValidationError

from autotune.config import LoaderConfig, StartMethod
from autotune.errors import NoFeasibleConfigError, UsageError
from autotune.planning.cost_model import max_useful_workers
from autotune.protocol.budgets import Budgets
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import TuningRequest, ValueRange, Values
from autotune.settings import SETTINGS, Choice, config_from_values, setting_values
from autotune.system.machine import MachineProfile
from autotune.units import format_bytes

THREADED_CPU: Final = 0.25  # CPU time of a worker's library threads over that of its main thread; above it is limited
DENSE_RANGE_WIDTH: Final = 16  # up to this width every number of a range is searched
WITHOUT_EFFECT: Final = {
    "pin_memory": "pinning has no effect on this device or these samples",
    "device_prefetch": "this device needs no copy in advance",
}


@dataclass(frozen=True)
class SearchSpace:
    """The search space. Every configuration that it builds is legal.

    Attributes:
        choices: Values of each setting, ascending; a setting with one value is not searched.
        start_method: Start method of the workers, which is never searched.
        notes: Why a setting is not searched, or not in full.
    """

    choices: Mapping[str, tuple[Any, ...]]
    start_method: StartMethod | None = None
    notes: tuple[str, ...] = ()

    def searched(self) -> dict[str, tuple[Any, ...]]:
        """Return the settings with more than one choice."""
        return {name: choices for name, choices in self.choices.items() if len(choices) > 1}

    def from_params(self, params: Mapping[Any, Any]) -> LoaderConfig:
        """Build a legal configuration; each value becomes the nearest choice."""
        picked = {name: nearest_choice(params.get(name), choices) for name, choices in self.choices.items()}
        return config_from_values(picked, self.start_method)

    def to_params(self, config: LoaderConfig) -> dict[str, Any]:
        """Return the values of the searched settings, from which `from_params` builds the configuration."""
        values = setting_values(config)
        return {name: nearest_choice(values[name], choices) for name, choices in self.searched().items()}

    def nearest(self, config: LoaderConfig) -> LoaderConfig:
        """Return the configuration of the space that is nearest to another one."""
        return self.from_params(self.to_params(config))

    @cached_property
    def configs(self) -> tuple[LoaderConfig, ...]:
        """Every distinct configuration."""
        combinations = itertools.product(*self.choices.values())
        values = (dict(zip(self.choices, combination, strict=True)) for combination in combinations)
        return tuple(dict.fromkeys(config_from_values(one, self.start_method) for one in values))


def nearest_choice(value: Any, choices: Sequence[Choice]) -> Any:
    """Return the nearest choice; the first one if the value is not comparable."""
    if value in choices:
        return value
    numbers = [choice for choice in choices if isinstance(choice, int | float)]
    if value is None or isinstance(value, str) or not numbers:
        return choices[0]
    return min(numbers, key=lambda choice: abs(choice - value))


def choose_probe_sizes(request: TuningRequest) -> tuple[int, int]:
    """Return the batch size nearest to the default, and the largest batch size of the search."""
    setting = SETTINGS["batch_size"]
    requested = _requested_values(request).get("batch_size")
    sizes = [size for size in requested if isinstance(size, int)] if isinstance(requested, tuple) else []
    sizes = sizes or list(setting.choices)
    return min(sizes, key=lambda size: abs(size - setting.recommended)), max(sizes)


def _requested_values(request: TuningRequest) -> dict[str, Values]:
    """Return the restrictions of the request by setting; a fixed setting is a list of one value."""
    fixed: dict[str, Values] = {name: (value,) for name, value in request.fixed.items()}
    return fixed | {str(name): values for name, values in request.search.items()}


def plan_space(
    request: TuningRequest, machine: MachineProfile, workload: WorkloadProfile, budgets: Budgets
) -> SearchSpace:
    """Return the search space of a request on this machine, for this workload.

    Raises:
        UsageError: A restriction of the request leaves no legal value.
        NoFeasibleConfigError: Not even the smallest batch fits the memory limit.
    """
    notes: list[str] = []
    requested, own = _requested_values(request), workload.baseline.dataloader if workload.baseline is not None else None
    _check_fixed_settings(request, requested, workload)
    choices: dict[str, tuple[Any, ...]] = {name: setting.choices for name, setting in SETTINGS.items()}
    choices["batch_size"] = sizes = _plan_batch_sizes(requested.get("batch_size"), workload, budgets, notes)
    choices["num_workers"] = _plan_workers(request, machine, workload, budgets, sizes[0], notes)
    if own is not None and own.prefetch_factor is not None:
        choices["prefetch_factor"] = tuple(sorted({*choices["prefetch_factor"], own.prefetch_factor}))
    if workload.worker_threads_cpu < THREADED_CPU:
        choices["worker_threads"] = (None,)
    if workload.h2d is None or not workload.pinning:
        choices["device_prefetch"] = (False,)
    if workload.on_accelerator or not workload.pinning:
        where = "samples on the accelerator" if workload.on_accelerator else "this device"
        notes.append(f"pin_memory is off: it has no effect with {where}")
        choices["pin_memory"] = (False,)
    if request.epochs == 1:
        notes.append("persistent_workers is on: it has no effect with --epochs 1")
        choices["persistent_workers"] = (True,)
    choices |= {name: _restrict(name, choices[name], requested[name]) for name in requested if name != "batch_size"}
    choices |= {name: (value,) for name, value in workload.fixed_settings.items()}
    if choices["num_workers"] == (0,):
        choices |= {name: (setting.default,) for name, setting in SETTINGS.items() if setting.needs == "num_workers"}
    return SearchSpace(choices, workload.multiprocessing_context, tuple(notes))


def _check_fixed_settings(request: TuningRequest, requested: Mapping[str, Values], workload: WorkloadProfile) -> None:
    """Raise UsageError if the request asks for another value of a setting that the user's loader or dataset sets."""
    for name, value in workload.fixed_settings.items():
        asked = requested.get(name, (value,))
        allows = asked.low <= (value or 0) <= asked.high if isinstance(asked, ValueRange) else value in asked
        most = request.max_workers if name == "num_workers" else None
        if not allows or (most is not None and (value or 0) > most):
            owner = workload.loader_class or f"the dataset ({workload.description})"
            raise UsageError(f"{name} is {value}, as {owner} sets it, and cannot be changed from outside.")


def _restrict(name: str, choices: tuple[Any, ...], values: Values) -> tuple[Any, ...]:
    """Return the values of a setting that the request asks for.

    Raises:
        UsageError: One is not possible, or none is left.
    """
    setting = SETTINGS[name]
    wanted: set[Any] = set()
    if not isinstance(values, ValueRange):
        wanted = set(values)
    elif not setting.is_range:
        raise UsageError(f"--search {name} needs a list of values, not a range.")
    else:
        low, high = values.low, min(values.high, max(choices)) if name == "num_workers" else values.high
        wanted = {choice for choice in choices if low <= choice <= high}
        if name != "batch_size":
            wanted |= set(range(low, high + 1)) if high - low <= DENSE_RANGE_WIDTH else {low, high}
    if True in wanted and choices == (False,) and name in WITHOUT_EFFECT:
        raise UsageError(f"{name}=true: {WITHOUT_EFFECT[name]}; leave it out.")
    if not wanted:
        raise UsageError(f"--search {name} leaves none of the possible values {', '.join(map(str, choices))}.")
    try:
        return tuple(sorted(map(setting.check, wanted), key=lambda value: (value is not None, value)))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise UsageError(f"{name}={problem['input']} is not possible: {problem['msg']}.") from None


def _plan_batch_sizes(
    requested: Values | None, workload: WorkloadProfile, budgets: Budgets, notes: list[str]
) -> tuple[int | None, ...]:
    if "batch_size" in workload.fixed_settings:
        notes.append("batch_size is not tuned: the dataset or its loader sets it")
        return (workload.fixed_settings["batch_size"],)
    if workload.batching == "user":
        if requested is not None:
            raise UsageError("batch_size cannot be set: the workload makes its own batches.")
        notes.append("batch_size is not tuned: the workload's batch_sampler or dataset makes the batches")
        return (None,)
    own = workload.baseline.dataloader.batch_size if workload.baseline is not None else None
    sizes: tuple[int, ...] = SETTINGS["batch_size"].choices if own is None else (own,)
    if requested is not None:
        sizes = _restrict("batch_size", tuple(sorted({*SETTINGS["batch_size"].choices, *sizes})), requested)
    elif own is not None:
        notes.append(f"batch_size stays at {own}, that of your DataLoader: list sizes with --batch-size to search them")
    need_bytes = {size: 2 * size * workload.sample_bytes + workload.rss_bytes for size in sizes}
    fitting = [size for size in sizes if need_bytes[size] <= budgets.memory_bytes]
    if not fitting:
        raise NoFeasibleConfigError(
            f"A batch of {sizes[0]} samples needs about {format_bytes(need_bytes[sizes[0]])} of host memory and the "
            f"limit is {format_bytes(budgets.memory_bytes)}. Raise --max-memory, or give a smaller --batch-size."
        )
    if workload.samples:
        inside = [size for size in fitting if size <= workload.samples]
        if workload.drop_last and not inside:
            raise UsageError(
                f"drop_last leaves no batch: the dataset has {workload.samples} samples, the smallest batch "
                f"{sizes[0]}. Give a smaller --batch-size."
            )
        if workload.drop_last or not isinstance(requested, tuple):
            fitting = inside or fitting[:1]
    return tuple(fitting)


def _plan_workers(
    request: TuningRequest,
    machine: MachineProfile,
    workload: WorkloadProfile,
    budgets: Budgets,
    batch_size: int | None,
    notes: list[str],
) -> tuple[int, ...]:
    if workload.workers_duplicate_data:
        notes.append("num_workers is at most 1: without sharding by get_worker_info() each worker returns all the data")
        return (0, 1)[: 1 + budgets.max_workers]
    if workload.differing_samples and request.max_workers is None and not request.is_asked("num_workers"):
        notes.append("num_workers stays at 0: workers return different data (--max-workers searches them all the same)")
        return (0,)
    if not machine.shm_writable:
        notes.append("num_workers stays at 0: workers need /dev/shm, which is not writable")
        return (0,)
    most = budgets.max_workers
    if request.max_workers is None and not isinstance(request.search.get("num_workers"), ValueRange):
        size = batch_size or workload.probe_batch_size
        most = min(most, max_useful_workers(workload, size, machine.usable_cpus))
    if workload.shards is not None and workload.shards < most:
        most = workload.shards
        notes.append(f"num_workers is at most {most}: the dataset has {most} shards, and each worker needs one")
    own = workload.baseline.dataloader.num_workers if workload.baseline is not None else 0
    counts = {count for count in (*SETTINGS["num_workers"].choices, most) if count <= most}
    counts |= {own} if request.max_workers is None or own <= request.max_workers else set()
    return tuple(sorted(counts))
