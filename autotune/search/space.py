"""Which configurations may be tried: legal by construction, without knobs that change nothing here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from pydantic import ValidationError

from autotune.search.cost_model import predict_samples_per_second, suggest_most_workers
from autotune.errors import NoFeasibleConfigError, UsageError
from autotune.trial.budgets import DemandModel, Limits
from autotune.system.machine import MachineProfile, count_whole_cpus
from autotune.trial.protocol import WorkloadProfile
from autotune.request import KNOBS, RANGED_KNOBS, Knob, TuningRequest
from autotune.profiles.schema import (
    BatchSize,
    DataLoaderSettings,
    LoaderConfig,
    Prefetch,
    ProcessSettings,
    SharingStrategy,
    StartMethod,
    Value,
    Workers,
)
from autotune.units import format_bytes

WORKER_GRID: Final = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
PREFETCH_GRID: Final = (1, 2, 4, 8)
BATCH_GRID: Final = (16, 32, 64, 128, 256, 512)
WITHOUT_WORKERS: Final[dict[Knob, tuple[int | bool | str, ...]]] = {
    "prefetch_factor": (2,),
    "persistent_workers": (False,),
    "in_order": (True,),
    "sharing_strategy": ("file_descriptor",),
}  # knobs that mean nothing when no worker may be started
DENSE_RANGE: Final = 16  # a range the user gave is searched number by number up to this width
DEFAULT_BATCH_SIZE: Final = 32
GUESSED_FACTORS: Final = (1.0, 0.5, 1.5)  # of the workers that the model thinks enough
ENOUGH: Final = 0.98  # of the best prediction; more workers than it takes to reach that are not worth it
CONVENTION: Final[dict[Knob, int | bool | str]] = {
    "prefetch_factor": 2,
    "persistent_workers": True,
    "in_order": True,
    "sharing_strategy": "file_descriptor",
}  # what a careful hand would set; the knobs whose effect the cost model cannot see start here

Choice = int | bool | str | None


class SearchSpace(Value):
    """Choices for every knob, ascending; a knob with one choice is pinned.

    Attributes:
        batch_size: Samples per batch; a single None where batching is the user's own.
        num_workers: Worker counts.
        prefetch_factor: Batches ahead per worker.
        pin_memory: Pinning.
        persistent_workers: Keeping workers.
        in_order: Order of delivery.
        sharing_strategy: How batches are handed over.
        device_prefetch: Copying the next batch to the device beside the step; it goes with pinning alone.
        multiprocessing_context: Start method the workload brings along; never searched.
        notes: Why a knob is not searched.
    """

    batch_size: tuple[BatchSize | None, ...]
    num_workers: tuple[Workers, ...]
    prefetch_factor: tuple[Prefetch, ...] = PREFETCH_GRID
    pin_memory: tuple[bool, ...] = (False, True)
    persistent_workers: tuple[bool, ...] = (False, True)
    in_order: tuple[bool, ...] = (False, True)
    sharing_strategy: tuple[SharingStrategy, ...] = get_args(SharingStrategy)
    device_prefetch: tuple[bool, ...] = (False,)
    multiprocessing_context: StartMethod | None = None
    notes: tuple[str, ...] = ()

    def choices(self) -> dict[Knob, tuple[Choice, ...]]:
        """List every knob with its choices."""
        return {knob: getattr(self, knob) for knob in KNOBS}

    def searched(self) -> dict[Knob, tuple[Choice, ...]]:
        """List the knobs that have more than one choice."""
        return {knob: choices for knob, choices in self.choices().items() if len(choices) > 1}

    def build(self, params: Mapping[Any, Any]) -> LoaderConfig:
        """Make the legal configuration that a set of parameters stands for.

        Args:
            params: A value for each searched knob, not necessarily one of its choices.

        Returns:
            The configuration, each number snapped to the nearest choice, knobs without meaning at
            `num_workers=0` left at their defaults.
        """
        picked = {knob: _snap(params.get(knob), choices) for knob, choices in self.choices().items()}
        return make_config(picked, self.multiprocessing_context)

    def params(self, config: LoaderConfig) -> dict[str, Any]:
        """Give the searched parameters that `build` turns into a configuration.

        Args:
            config: The configuration; values outside the choices are snapped.

        Returns:
            A value for each searched knob.
        """
        values = {**config.dataloader.model_dump(), **config.process.model_dump()}
        return {knob: _snap(values[knob], choices) for knob, choices in self.searched().items()}

    def nearest(self, config: LoaderConfig) -> LoaderConfig:
        """Give the configuration of the space that is nearest to another one: that one itself where it lies inside."""
        return self.build(self.params(config))

    def configs(self) -> Iterator[LoaderConfig]:
        """Yield every distinct legal configuration of the space."""
        seen = set()
        for values in itertools.product(*self.choices().values()):
            config = make_config(dict(zip(KNOBS, values, strict=True)), self.multiprocessing_context)
            if config not in seen:
                seen.add(config)
                yield config


def _snap(value: Any, choices: Sequence[Choice]) -> Any:
    """Take the nearest choice; the first one where the value says nothing."""
    if value in choices:
        return value
    numbers = [choice for choice in choices if isinstance(choice, int)]
    if value is None or isinstance(value, str) or not numbers:
        return choices[0]
    return min(numbers, key=lambda choice: abs(choice - value))


def make_config(values: Mapping[Knob, Any], multiprocessing_context: StartMethod | None = None) -> LoaderConfig:
    """Build a legal configuration from a value for every knob.

    Args:
        values: All knobs.
        multiprocessing_context: Start method of the workers; None is the interpreter's default.

    Returns:
        The configuration; what has no meaning without workers, or without pinning, is left at its default.
    """
    workers, pinned = values["num_workers"], values["pin_memory"]
    extra = {key: values[key] for key in ("prefetch_factor", "persistent_workers", "in_order")} if workers else {}
    loader = DataLoaderSettings(batch_size=values["batch_size"], num_workers=workers, pin_memory=pinned, **extra)
    strategy = {"sharing_strategy": values["sharing_strategy"]} if workers else {}
    process = ProcessSettings(
        multiprocessing_context=multiprocessing_context,
        non_blocking=pinned,
        device_prefetch=pinned and values["device_prefetch"],
        **strategy,
    )
    return LoaderConfig(dataloader=loader, process=process)


def plan_space(
    request: TuningRequest, machine: MachineProfile, workload: WorkloadProfile, limits: Limits
) -> SearchSpace:
    """Decide what is searched for this request, machine and workload.

    Args:
        request: What the user pinned or narrowed.
        machine: What the machine allows.
        workload: What the probe found.
        limits: Budgets.

    Returns:
        The space.

    Raises:
        UsageError: A pinned or narrowed knob leaves nothing that is legal here.
        NoFeasibleConfigError: Not even the smallest batch fits the memory budget.
    """
    notes: list[str] = []
    batch_sizes = _plan_batch_sizes(request, workload, limits, notes)
    choices: dict[Knob, tuple[Choice, ...]] = {
        "batch_size": batch_sizes,
        "num_workers": _plan_workers(request, machine, workload, limits, batch_sizes, notes),
        "prefetch_factor": _plan_prefetching(workload),
        "pin_memory": _plan_pinning(workload, notes),
        "persistent_workers": _plan_persistence(request, workload, notes),
        "in_order": (False, True),
        "sharing_strategy": get_args(SharingStrategy),
        "device_prefetch": (False, True) if workload.copies is not None and workload.pinning else (False,),
    }
    for knob, (low, high) in request.ranges.items():
        choices[knob] = _narrow(knob, choices[knob], low, high)
    for knob, value in request.fixed.items():
        choices[knob] = (_check_fixed(knob, value, choices[knob]),)
    if choices["num_workers"] == (0,):
        choices |= WITHOUT_WORKERS
    try:
        return SearchSpace.model_validate(
            {**choices, "multiprocessing_context": workload.multiprocessing_context, "notes": tuple(notes)}
        )
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = problem["loc"][0]
        raise UsageError(f"{place}={problem['input']} is not possible: {problem['msg']}.") from None


def _plan_batch_sizes(
    request: TuningRequest, workload: WorkloadProfile, limits: Limits, notes: list[str]
) -> tuple[int | None, ...]:
    if workload.batching == "own":
        notes.append("batch_size is not tuned: the batches are made by the workload's own batch_sampler or dataset")
        return (None,)
    wanted = _list_wanted_sizes(request, workload, notes)
    fitting = [
        size
        for size in sorted(set(wanted))
        if 2 * size * workload.sample_bytes + workload.rss_bytes <= limits.memory_bytes
    ]
    if not fitting:
        need = format_bytes(2 * min(wanted) * workload.sample_bytes + workload.rss_bytes)
        raise NoFeasibleConfigError(
            f"A batch of {min(wanted)} samples needs about {need} of host memory and the budget is "
            f"{format_bytes(limits.memory_bytes)}. Give more with --max-memory, or a smaller --batch-size."
        )
    if workload.drop_last and workload.samples is not None:
        fitting = [size for size in fitting if size <= workload.samples]
        if not fitting:
            raise UsageError(
                f"drop_last leaves no batch: the dataset has {workload.samples} samples, the smallest batch "
                f"{min(wanted)}. Give a smaller --batch-size."
            )
    if request.batch_sizes is None and workload.samples:
        fitting = [size for size in fitting if size <= workload.samples] or fitting[:1]
    return tuple(fitting)


def _list_wanted_sizes(request: TuningRequest, workload: WorkloadProfile, notes: list[str]) -> tuple[int, ...]:
    """List the batch sizes that the user asked for: a ready DataLoader's own is one, since another changes training."""
    fixed = request.fixed.get("batch_size")
    if isinstance(fixed, int):
        return (fixed,)
    if request.batch_sizes is not None:
        return request.batch_sizes
    own = workload.baseline.dataloader.batch_size if workload.baseline is not None else None
    if own is None or "batch_size" in request.ranges:
        return BATCH_GRID if own is None else (*BATCH_GRID, own)
    notes.append(
        f"batch_size stays at {own}, that of your DataLoader: another one changes training, not only its speed. "
        "List sizes with --batch-size to have them searched"
    )
    return (own,)


def _plan_prefetching(workload: WorkloadProfile) -> tuple[int, ...]:
    """List the batches ahead of the grid, and those of a ready DataLoader: its settings must be among the choices."""
    own = workload.baseline.dataloader.prefetch_factor if workload.baseline is not None else None
    return PREFETCH_GRID if own is None else tuple(sorted({*PREFETCH_GRID, own}))


def _plan_workers(
    request: TuningRequest,
    machine: MachineProfile,
    workload: WorkloadProfile,
    limits: Limits,
    batch_sizes: Sequence[int | None],
    notes: list[str],
) -> tuple[int, ...]:
    if workload.duplicated:
        notes.append(
            "num_workers stays at 0 or 1: the iterable dataset does not shard itself by get_worker_info(), "
            "so every further worker delivers all the data once more"
        )
        return (0, 1)[: 1 + limits.max_workers]
    if not machine.shm_writable:
        notes.append(
            "num_workers stays at 0: /dev/shm cannot be written, and workers hand their batches over through it"
        )
        return (0,)
    size = batch_sizes[0] or workload.probe_batch_size
    most = min(limits.max_workers, suggest_most_workers(workload, size, machine.usable_cpus))
    if request.max_workers is not None or "num_workers" in request.ranges:
        most = limits.max_workers
    feasible = [count for count in (*WORKER_GRID, most) if count <= most] + _list_own_workers(request, workload)
    model = DemandModel.from_workload(workload)
    fitting = [count for count in feasible if _fits_smallest(count, batch_sizes, model, limits)]
    if max(fitting) < max(feasible):
        notes.append(
            f"more than {max(fitting)} workers would break a limit even with the smallest batch "
            f"(/dev/shm budget {format_bytes(limits.shm_bytes)}, memory budget {format_bytes(limits.memory_bytes)}, "
            f"{limits.nofile} files)"
        )
    return tuple(sorted(set(fitting)))


def _list_own_workers(request: TuningRequest, workload: WorkloadProfile) -> list[int]:
    """List the workers of a ready DataLoader, as far as the user allows them, whatever the probe thinks useful."""
    own = workload.baseline.dataloader.num_workers if workload.baseline is not None else 0
    return [own] if request.max_workers is None or own <= request.max_workers else []


def _fits_smallest(workers: int, batch_sizes: Sequence[int | None], model: DemandModel, limits: Limits) -> bool:
    if workers == 0:
        return True
    smallest = make_config(
        {
            "batch_size": batch_sizes[0],
            "num_workers": workers,
            "prefetch_factor": 1,
            "pin_memory": False,
            "persistent_workers": False,
            "in_order": True,
            "sharing_strategy": "file_system",
        }
    )
    return not model.predict(smallest).find_violations(limits)


def _plan_pinning(workload: WorkloadProfile, notes: list[str]) -> tuple[bool, ...]:
    if workload.on_accelerator:
        notes.append("pin_memory stays off: the samples are on the accelerator already, only host memory can be pinned")
    elif not workload.pinning:
        notes.append("pin_memory stays off: it has no effect on this device")
    return (False, True) if workload.pinning and not workload.on_accelerator else (False,)


def _plan_persistence(request: TuningRequest, workload: WorkloadProfile, notes: list[str]) -> tuple[bool, ...]:
    if request.epochs == 1:
        notes.append("persistent_workers stays on: with --epochs 1 it has no effect")
        return (True,)
    return (False, True)


def _narrow(knob: Knob, choices: tuple[Choice, ...], low: int, high: int) -> tuple[Choice, ...]:
    if knob not in RANGED_KNOBS:
        raise UsageError(f"--range {knob}: only {', '.join(RANGED_KNOBS)} have a range; use --fix {knob}=VALUE.")
    inside = {choice for choice in choices if isinstance(choice, int) and low <= choice <= high}
    if knob != "batch_size":
        top = min(high, max(choice for choice in choices if isinstance(choice, int))) if knob == "num_workers" else high
        dense = top - low <= DENSE_RANGE
        inside |= set(range(low, top + 1)) if dense else {low, top}
    if not inside:
        raise UsageError(f"--range {knob}={low}:{high} leaves none of the possible values {_list(choices)}.")
    return tuple(sorted(inside))


def _check_fixed(knob: Knob, value: Any, choices: tuple[Choice, ...]) -> Choice:
    if knob == "pin_memory" and value is True and choices == (False,):
        raise UsageError("--fix pin_memory=true: pinning has no effect on this device or these samples; leave it out.")
    if knob == "device_prefetch" and value is True and choices == (False,):
        raise UsageError("--fix device_prefetch=true: there is nothing to copy ahead on this device; leave it out.")
    if knob == "batch_size" and choices == (None,):
        raise UsageError("--fix batch_size: the workload brings its own batches, so batch_size cannot be set.")
    return value  # type: ignore[no-any-return]  # validated against SearchSpace by plan_space


def _list(choices: Sequence[Choice]) -> str:
    return ", ".join(str(choice) for choice in choices)


def plan_baseline(
    request: TuningRequest, workload: WorkloadProfile, space: SearchSpace, limits: Limits
) -> LoaderConfig:
    """Choose what the tuned configuration is compared with.

    Args:
        request: What the user asked for.
        workload: What the probe found.
        space: The space; its only batch size is used where there is one.
        limits: Budgets.

    Returns:
        The settings of the user's ready DataLoader, changed only as far as pins, ranges, --max-workers and budgets
        demand, because a baseline that is kept must honour them; else what is nearest to PyTorch's defaults, at a
        batch size of 32, in the space.
    """
    if workload.baseline is None:
        default = LoaderConfig(dataloader=DataLoaderSettings(batch_size=_snap(DEFAULT_BATCH_SIZE, space.batch_size)))
        return space.build(list_values(default))
    own = list_values(workload.baseline)
    for knob in request.ranges:
        own[knob] = _snap(own[knob], space.choices()[knob])
    if len(space.batch_size) == 1:
        own["batch_size"] = space.batch_size[0]
    if request.max_workers is not None:
        own["num_workers"] = min(own["num_workers"], request.max_workers)
    return _fit_workers({**own, **request.fixed}, workload, space, limits)


def _fit_workers(
    values: Mapping[Knob, Any], workload: WorkloadProfile, space: SearchSpace, limits: Limits
) -> LoaderConfig:
    """Take as many workers away as the budgets demand; none where that would not help."""
    model = DemandModel.from_workload(workload)
    fewer = [count for count in reversed(space.num_workers) if count < values["num_workers"]]
    tried = [
        make_config({**values, "num_workers": count}, workload.multiprocessing_context)
        for count in (values["num_workers"], *fewer)
    ]
    return next((config for config in tried if not model.predict(config).find_violations(limits)), tried[0])


def describe_changed_baseline(own: LoaderConfig, baseline: LoaderConfig) -> str | None:
    """Say where the baseline is not the user's own DataLoader; None where it is.

    Args:
        own: Settings of the user's DataLoader.
        baseline: What the tuned configuration is compared with.

    Returns:
        A sentence, for the notes.
    """
    before, after = list_values(own), list_values(baseline)
    changes = [f"{knob}={after[knob]} instead of {before[knob]}" for knob in KNOBS if after[knob] != before[knob]]
    if not changes:
        return None
    return f"the baseline is your DataLoader with {', '.join(changes)}: pins and budgets hold for it, too"


def list_values(config: LoaderConfig) -> dict[Knob, Any]:
    """List the value of every knob of a configuration.

    Args:
        config: The configuration.

    Returns:
        A value for each knob; what a configuration without workers does not say is torch's default.
    """
    values = {**config.dataloader.model_dump(), **config.process.model_dump()}
    return {knob: values[knob] if values[knob] is not None or knob == "batch_size" else 2 for knob in KNOBS}


def guess_configs(
    space: SearchSpace, workload: WorkloadProfile, machine: MachineProfile, epochs: int, limits: Limits
) -> list[LoaderConfig]:
    """List configurations worth trying first: a common hand setting and the cost model's best guesses.

    Args:
        space: The space.
        workload: What the probe measured.
        machine: What the machine allows.
        epochs: Length of the training run in epochs.
        limits: Budgets; configurations predicted to break one are left out.

    Returns:
        Distinct configurations: the one the model thinks enough first, then with fewer and more workers, because
        the model may be wrong by a factor of two, then the hand setting, then every other batch size.
    """
    model = DemandModel.from_workload(workload)

    def predict(config: LoaderConfig) -> float:
        return predict_samples_per_second(config, workload, machine.usable_cpus, epochs)

    def build(**values: Choice) -> LoaderConfig:
        return space.build({**CONVENTION, "pin_memory": workload.pinning, **values})

    by_workers = {}
    for workers in space.num_workers:
        sizes = [build(num_workers=workers, batch_size=size) for size in space.batch_size]
        fitting = [config for config in sizes if not model.predict(config).find_violations(limits)]
        if fitting:
            by_workers[workers] = max(fitting, key=predict)
    hand = build(num_workers=count_whole_cpus(machine.usable_cpus), batch_size=DEFAULT_BATCH_SIZE)
    hands = [] if model.predict(hand).find_violations(limits) else [hand]
    if not by_workers:
        return hands
    best = max(by_workers.values(), key=predict)
    enough = min(workers for workers, config in by_workers.items() if predict(config) >= ENOUGH * predict(best))
    around = [_snap(round(enough * factor), tuple(by_workers)) for factor in GUESSED_FACTORS]
    sizes = [build(num_workers=enough, batch_size=size) for size in space.batch_size]
    others = [config for config in sizes if not model.predict(config).find_violations(limits)]
    return list(dict.fromkeys([*(by_workers[workers] for workers in around), *hands, *others]))
