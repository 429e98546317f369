"""What the arguments of other libraries are called, which settings each has no place for, and what happens instead.

None of these libraries is imported here. What their arguments are called was read in their sources, and the tests
give them to the real library; docs/exports.md says which versions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

from autotune.config import LoaderConfig, ProcessSettings
from autotune.profiles.identity import WorkloadIdentity
from autotune.settings import SETTINGS, WORKER_SETTINGS, process_settings

Target = Literal["kwargs", "statefuldataloader", "hf", "accelerate", "lightning", "timm", "yaml", "json", "env"]
Library = Literal["statefuldataloader", "hf", "accelerate", "lightning", "timm"]
Setting = int | bool | float | str
Settings = Mapping[str, Setting]
Arguments = Mapping[str, Any]  # settings, or mappings of them where a library has its arguments so

TARGETS: Final[tuple[Target, ...]] = get_args(Target)
LIBRARIES: Final[tuple[Library, ...]] = get_args(Library)  # the targets that are called with arguments
LOADER_ARGUMENTS: Final = (
    *(knob.name for knob in SETTINGS.values() if knob.section == "dataloader"),
    "multiprocessing_context",
)
OUTSIDE_LOADER: Final = ("non_blocking", "device_prefetch")  # what `TunedLoader.make_loader` cannot set
ALL: Final = (*LOADER_ARGUMENTS, *(name for name in ProcessSettings.model_fields if name not in LOADER_ARGUMENTS))
NO_RESUMING: Final = "With in_order=False nothing guarantees that it resumes where it stopped."


@dataclass(frozen=True, slots=True)
class UnsupportedSetting:
    """A setting that the target has no place for: what happens, or what to do."""

    field: str
    value: Setting | None  # None for a batch size that the workload decides itself
    is_lost: bool  # something else than the tuned value is in force unless the reader does something about it
    remark: str

    def describe(self) -> str:
        """Say it in one sentence."""
        return f"{self.field}={self.value!r} is not held: {self.remark}."


@dataclass(frozen=True, slots=True)
class Translation:
    """A configuration in the words of a target.

    Attributes:
        arguments: The settings that it holds, by its names.
        unheld: Those that it has no place for.
    """

    arguments: Arguments
    unheld: tuple[UnsupportedSetting, ...]

    def list_lost(self, *, beside_make_loader: bool) -> list[UnsupportedSetting]:
        """List the settings that are lost unless something is done, perhaps beside a loader made by `make_loader`."""
        lost = [setting for setting in self.unheld if setting.is_lost]
        return [setting for setting in lost if not beside_make_loader or setting.field in OUTSIDE_LOADER]


def _write_python(settings: Arguments) -> str:
    lines = [f"    {json.dumps(name)}: {_quote(value)}," for name, value in settings.items()]
    return "\n".join(["{", *lines, "}"])


def _quote(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _write_json(settings: Arguments) -> str:
    return json.dumps(settings, indent=2)


def _write_yaml(settings: Arguments) -> str:
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in settings.items())


def _write_yaml_for_lightning(settings: Arguments) -> str:
    return "\n".join(["data:", *(f"  {line}" for line in _write_yaml(settings).splitlines())])


def _write_variables(settings: Arguments) -> str:
    """Write assignments without quotes, which not every reader of such files takes away."""
    words = {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
    return "\n".join(f"{name}={word}" for name, word in words.items())


def _write_flags(settings: Arguments) -> str:
    """Write command-line flags; one that is off is left out."""
    flags = ((name, value) for name, value in settings.items() if value is not False)
    return " ".join(name if value is True else f"{name} {value}" for name, value in flags)


def _add_for_accelerate(settings: Settings) -> Settings:
    """Keep the batch size per process, and let copies from pinned memory overlap with the step."""
    return {"split_batches": False, "non_blocking": settings["pin_memory"]}


def _name_variable(name: str) -> str:
    return f"DATALOADER_{name.upper()}"


def _names_for(target: Target) -> dict[str, str]:
    return {knob.name: knob.export_names[target] for knob in SETTINGS.values() if target in knob.export_names}


_SAME: Final = {name: name for name in LOADER_ARGUMENTS}
_DEFAULTS: Final[Settings] = {knob.name: knob.default for knob in WORKER_SETTINGS}  # where nobody sets them
_REMARKS: Final[Mapping[str, str]] = {
    "multiprocessing_context": 'call torch.multiprocessing.set_start_method("{value}") before anything else',
    "non_blocking": "copy batches with batch.to(device, non_blocking=True)",
} | {knob.name: knob.instruction for knob in SETTINGS.values() if knob.instruction is not None}


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """Who reads an export, and what it can say."""

    reader: str
    names: Mapping[str, str]  # of the settings that it holds; `a.b` is b in the mapping that is given as a
    write: Callable[[Arguments], str]
    add: Callable[[Settings], Settings] | None = None  # what gives the tuned settings their meaning there
    own: Settings = field(default_factory=lambda: _DEFAULTS)  # what it does by itself where it holds no setting
    remarks: Mapping[str, str] = field(default_factory=dict)  # on settings that it does not hold
    write_own: Callable[[str], str] | None = None  # how it calls arguments of the user's factory; None for not at all
    hint: str = ""
    has_comments: bool = True  # that start with #
    makes_loader: bool = True  # else training code does, by `TunedLoader.make_loader`


_TARGETS: Final[Mapping[Target, ExportTarget]] = {
    "kwargs": ExportTarget("torch.utils.data.DataLoader", _SAME, _write_python),
    "statefuldataloader": ExportTarget(
        "torchdata.stateful_dataloader.StatefulDataLoader",
        _SAME,
        _write_python,
        hint="snapshot_every_n_steps was not tuned and is left as it is",
    ),
    "hf": ExportTarget(
        "transformers.TrainingArguments",
        {name: f"dataloader_{name}" for name in LOADER_ARGUMENTS}
        | {"non_blocking": "accelerator_config.non_blocking"}
        | _names_for("hf"),
        _write_yaml,
        remarks={"batch_size": "the Trainer makes batches of per_device_train_batch_size, 8 if you leave that out"},
    ),
    "accelerate": ExportTarget(
        "accelerate.utils.DataLoaderConfiguration",
        {"non_blocking": "non_blocking"},
        _write_python,
        add=_add_for_accelerate,
        remarks=dict.fromkeys(
            LOADER_ARGUMENTS, "give it to the DataLoader (--to kwargs); Accelerator.prepare() keeps it"
        ),
        makes_loader=False,
    ),
    "lightning": ExportTarget(
        "lightning.pytorch.cli.LightningCLI",
        _SAME,
        _write_yaml_for_lightning,
        own={**_DEFAULTS, "non_blocking": True},
        hint="These are arguments of your DataModule's __init__; where it has a class_path, put them under init_args",
    ),
    "timm": ExportTarget(
        "timm's train.py",
        _names_for("timm"),
        _write_flags,
        own={
            **_DEFAULTS,
            "prefetch_factor": 2,
            "persistent_workers": True,
            "in_order": True,
            "non_blocking": True,
            "device_prefetch": True,
        },
        remarks={
            "batch_size": "timm makes batches of --batch-size, 128 if you leave that out",
            "prefetch_factor": "timm stays with PyTorch's 2",
            "persistent_workers": "timm keeps its workers from one epoch to the next",
            "in_order": "timm's batches come in order",
        },
        has_comments=False,
    ),
    "yaml": ExportTarget("code of your own", {name: name for name in ALL}, _write_yaml, write_own=str),
    "json": ExportTarget(
        "code of your own", {name: name for name in ALL}, _write_json, write_own=str, has_comments=False
    ),
    "env": ExportTarget(
        "a shell", {name: _name_variable(name) for name in ALL}, _write_variables, write_own=_name_variable
    ),
}
_TIMM: Final = ("batch_size", "num_workers", "pin_memory", "persistent_workers")
_CALLED: Final[Mapping[Target, ExportTarget]] = {  # where a function is called otherwise than the export is read
    "timm": replace(
        _TARGETS["timm"],
        reader="timm.data.create_loader",
        names={name: name for name in _TIMM},
        remarks={**_TARGETS["timm"].remarks, "batch_size": "timm makes batches, and wants a size for them"},
    ),
}


def find_target(to: Target, *, is_called: bool = False) -> ExportTarget:
    """Find who reads an export, or who is called with the settings as arguments."""
    return (is_called and _CALLED.get(to)) or _TARGETS[to]


def translate(target: ExportTarget, workload: WorkloadIdentity, config: LoaderConfig) -> Translation:
    """Say a configuration in the words of a target, and what it has no place for."""
    settings = workload.leave_out_decided(_list_settings(config))
    held = {target.names[name]: value for name, value in settings.items() if name in target.names}
    if target.write_own is not None:
        held |= {target.write_own(name): value for name, value in config.knobs.items()}
    added = target.add(settings) if target.add is not None else {}
    unheld = (*_find_unheld(target, settings), *_list_unheld_knobs(target, workload, config))
    return Translation(_nest({**held, **added}), unheld)


def _nest(settings: Settings) -> Arguments:
    """Gather what is called `a.b` in a mapping called `a`."""
    nested: dict[str, Any] = {}
    for name, value in settings.items():
        place, _, within = name.partition(".")
        nested |= {place: {**nested.get(place, {}), within: value} if within else value}
    return nested


def _list_settings(config: LoaderConfig) -> Settings:
    """List what a configuration sets, in the order of `ALL`; what counts only with workers is left out without them."""
    settings = config.loader_kwargs() | {name: True for name, value in config.process if value is True}
    settings |= process_settings(config)
    return {name: settings[name] for name in ALL if name in settings}


def _find_unheld(target: ExportTarget, settings: Settings) -> tuple[UnsupportedSetting, ...]:
    unheld = [_explain(target, name, value) for name, value in settings.items() if name not in target.names]
    remark = target.remarks.get("batch_size")
    if "batch_size" in target.names and remark and "batch_size" not in settings:
        unheld.insert(0, UnsupportedSetting("batch_size", None, is_lost=True, remark=remark))
    return tuple(unheld)


def _list_unheld_knobs(
    target: ExportTarget, workload: WorkloadIdentity, config: LoaderConfig
) -> list[UnsupportedSetting]:
    """List the arguments of the user's own factory, where the target has no place for them."""
    if target.write_own is not None:
        return []
    remark = f"give it to {workload.dataset}"
    return [UnsupportedSetting(name, value, is_lost=True, remark=remark) for name, value in config.knobs.items()]


def _explain(target: ExportTarget, name: str, value: Setting) -> UnsupportedSetting:
    if target.own.get(name) == value:
        return UnsupportedSetting(name, value, is_lost=False, remark="it is what happens anyway")
    remark = {**_REMARKS, **target.remarks}[name].format(value=value)
    return UnsupportedSetting(name, value, is_lost=True, remark=remark)
