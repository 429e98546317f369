"""The table of knobs: for each one what it is. Space, models, ablation, report, exports and options derive from it.

A new knob is a field of `config.DataLoaderSettings` or `config.ProcessSettings`, an entry here, and what it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import TypeAdapter

from autotune.config import DataLoaderSettings, LoaderConfig, ProcessSettings, SharingStrategy, StartMethod

Choice = int | bool | float | str | None
KnobName = Literal[
    "batch_size",
    "num_workers",
    "prefetch_factor",
    "pin_memory",
    "persistent_workers",
    "in_order",
    "sharing_strategy",
    "device_prefetch",
    "worker_threads",
]
Section = Literal["dataloader", "process", "knobs"]
SECTIONS: Final[Mapping[str, type[DataLoaderSettings | ProcessSettings]]] = {
    "dataloader": DataLoaderSettings,
    "process": ProcessSettings,
}


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting that is searched."""

    name: str  # by DataLoader, in dltune.json, by --fix and --range; a `KnobName`, or a parameter of the user's factory
    section: Section  # of a configuration: arguments of DataLoader, settings of the process, arguments of a factory
    choices: tuple[Any, ...]  # what is searched unless the workload, the machine or the user narrows it
    default: Any  # in PyTorch, once what it needs is there
    convention: Any  # the usual value, which it keeps unless leaving it is measured to pay
    needs: Literal["num_workers", "pin_memory"] | None = None  # else it means nothing, and stays at its default
    is_ranged: bool = False  # a number that --range narrows; others are switches
    changes_training: bool = False  # not only its speed
    label: str = ""  # as in `w=11 pf=4`, or the word that is shown where a switch leaves its default
    instruction: str | None = None  # what training code must do about it beside making the loader
    setup: str | None = None  # the line of code before that, where it leaves its default
    export_names: Mapping[str, str] = field(default_factory=dict)  # of targets that do not call it by its name

    def read(self, config: LoaderConfig) -> Any:
        """Read its value; where a configuration without workers does not say, PyTorch's default."""
        section = getattr(config, self.section)
        value = section[self.name] if self.section == "knobs" else getattr(section, self.name)
        return self.default if value is None and self.needs is not None else value

    def check(self, value: Any) -> Choice:
        """Give a value as a configuration holds it; raises `pydantic.ValidationError` where it can hold no such one."""
        found = SECTIONS[self.section].model_fields[self.name]
        adapter: TypeAdapter[Choice] = TypeAdapter(Annotated[found.annotation, *found.metadata, None])  # type: ignore[arg-type]  # made at run time
        return adapter.validate_python(value)


TABLE: Final = (  # in the order in which they are usually set
    Knob(
        "batch_size",
        "dataloader",
        choices=(16, 32, 64, 128, 256, 512),
        default=1,
        convention=32,
        is_ranged=True,
        changes_training=True,
        label="bs",
        export_names={"hf": "per_device_train_batch_size", "timm": "--batch-size"},
    ),
    Knob(
        "num_workers",
        "dataloader",
        choices=(0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64),
        default=0,
        convention=0,
        is_ranged=True,
        label="w",
        export_names={"timm": "--workers"},
    ),
    Knob(
        "prefetch_factor",
        "dataloader",
        choices=(1, 2, 4, 8),
        default=2,
        convention=2,
        needs="num_workers",
        is_ranged=True,
        label="pf",
    ),
    Knob(
        "pin_memory",
        "dataloader",
        choices=(False, True),
        default=False,
        convention=True,
        label="pin",
        export_names={"timm": "--pin-mem"},
    ),
    Knob(
        "persistent_workers",
        "dataloader",
        choices=(False, True),
        default=False,
        convention=True,
        needs="num_workers",
        label="persistent",
    ),
    Knob(
        "in_order",
        "dataloader",
        choices=(False, True),
        default=True,
        convention=True,
        needs="num_workers",
        changes_training=True,
        label="out-of-order",
    ),
    Knob(
        "sharing_strategy",
        "process",
        choices=get_args(SharingStrategy),
        default="file_descriptor",
        convention="file_descriptor",
        needs="num_workers",
        label="file_system",
        instruction='call torch.multiprocessing.set_sharing_strategy("{value}") before the first worker starts, '
        "and in worker_init_fn too where workers are not forked",
        setup="torch.multiprocessing.set_sharing_strategy({value!r})",
    ),
    Knob(
        "device_prefetch",
        "process",
        choices=(False, True),
        default=False,
        convention=False,
        needs="pin_memory",
        label="device-prefetch",
        instruction="go through autotune.device_prefetch(loader, device) instead of the loader",
    ),
    Knob(
        "worker_threads",
        "process",
        choices=(None, 1),
        default=None,
        convention=None,
        needs="num_workers",
        label="1-thread",
        instruction="let each library that starts threads have {value} in worker_init_fn: cv2.setNumThreads({value})",
        setup="# in worker_init_fn: cv2.setNumThreads({value!r}), or what the library calls it that starts threads",
    ),
)
KNOBS: Final[Mapping[str, Knob]] = {knob.name: knob for knob in TABLE}
WORKER_SETTINGS: Final = tuple(knob for knob in TABLE if knob.section == "process" and knob.needs == "num_workers")
NUMBERS: Final = tuple(knob for knob in TABLE if knob.is_ranged)
SWITCHES: Final = tuple(knob for knob in TABLE if not knob.is_ranged)


def find_knob(name: str) -> Knob:
    """Find the entry of a knob; a name that is not in the table is that of one of the user's own."""
    return KNOBS.get(name) or Knob(name, "knobs", choices=(), default=None, convention=None, label=name)


def list_knobs(config: LoaderConfig) -> tuple[Knob, ...]:
    """List the knobs of a configuration: those of the table, then the user's own."""
    return (*TABLE, *map(find_knob, config.knobs))


def knob_values(config: LoaderConfig) -> dict[str, Any]:
    """List the value of every knob of a configuration."""
    return {knob.name: knob.read(config) for knob in list_knobs(config)}


def config_from_knobs(values: Mapping[str, Any], start_method: StartMethod | None = None) -> LoaderConfig:
    """Make the legal configuration of a value for every knob; what has no meaning beside others keeps its default."""
    parts: dict[Section, dict[str, Any]] = {"dataloader": {}, "process": {"non_blocking": values["pin_memory"]}}
    for knob in TABLE:
        if knob.needs is None or values[knob.needs]:
            parts[knob.section][knob.name] = values[knob.name]
    return LoaderConfig(
        dataloader=DataLoaderSettings(**parts["dataloader"]),
        process=ProcessSettings(multiprocessing_context=start_method, **parts["process"]),
        knobs={name: value for name, value in values.items() if name not in KNOBS},
    )


def settings_beside_loader(config: LoaderConfig) -> dict[str, Any]:
    """List what training code must set up beside the arguments of DataLoader; switches that are off are left out."""
    beside = (knob for knob in TABLE if knob.section == "process" and _is_said(knob, config))
    return {knob.name: knob.read(config) for knob in beside if knob.read(config) is not False}


def list_differences(config: LoaderConfig, other: LoaderConfig) -> tuple[str, ...]:
    """List the knobs in which two configurations differ."""
    values, others = knob_values(config), knob_values(other)
    return tuple(name for name in {**values, **others} if values.get(name) != others.get(name))


def describe_difference(config: LoaderConfig, other: LoaderConfig) -> str:
    """Write the settings in which a configuration differs from another, as in `prefetch_factor=4 in_order=False`."""
    values = knob_values(config)
    return " ".join(f"{name}={values.get(name)}" for name in list_differences(config, other))


def describe_config(config: LoaderConfig) -> str:
    """Describe a configuration in a few columns, as in `w=11 pf=4 bs=64 pin persistent`, the user's own knobs last."""
    order = (KNOBS["num_workers"], *(knob for knob in reversed(NUMBERS) if knob.name != "num_workers"))
    words = [f"{knob.label}={knob.read(config)}" for knob in order if _is_said(knob, config)]
    return " ".join([*words, *describe_switches(config)])


def describe_own(config: LoaderConfig) -> list[str]:
    """List the user's own knobs, as in `cache_size=256`."""
    return [f"{name}={value}" for name, value in config.knobs.items()]


def describe_switches(config: LoaderConfig) -> list[str]:
    """List the switches that are not at their defaults, in a word each, and the user's own knobs."""
    changed = [knob.label for knob in SWITCHES if knob.read(config) != knob.default]
    return [*changed, *describe_own(config)]


def describe_loader(config: LoaderConfig) -> str:
    """Describe what makes a loader by the names of arguments; the batch size is left to the caller."""
    words = []
    for knob in TABLE:
        value = knob.read(config)
        if knob.name == "batch_size" or knob.section != "dataloader" or not _is_said(knob, config):
            continue
        if knob.is_ranged:
            words.append(f"{knob.name}={value}")
        elif value != knob.default:
            words.append(knob.name if value else f"{knob.name}={value}")
    return " ".join([*words, *describe_own(config)])


def _is_said(knob: Knob, config: LoaderConfig) -> bool:
    return knob.read(config) is not None and (knob.needs is None or bool(KNOBS[knob.needs].read(config)))
