"""Writes a tuned configuration in the words of other libraries, and names every setting they have no place for.

None of these libraries is imported here. What their arguments are called was read in their sources, and the tests
load every export with the library it is for; docs/exports.md says which versions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from autotune.config import LoaderConfig, ProcessSettings
from autotune.errors import UsageError
from autotune.knobs import TABLE, WORKER_SETTINGS, settings_beside_loader
from autotune.profiles.schema import TunedProfile

Target = Literal["kwargs", "statefuldataloader", "hf", "accelerate", "lightning", "timm", "yaml", "json", "env"]
Setting = int | bool | float | str
Settings = Mapping[str, Setting]

TARGETS: Final[tuple[Target, ...]] = get_args(Target)
LOADER_ARGUMENTS: Final = (*(knob.name for knob in TABLE if knob.section == "dataloader"), "multiprocessing_context")
ALL: Final = (*LOADER_ARGUMENTS, *(name for name in ProcessSettings.model_fields if name not in LOADER_ARGUMENTS))


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
class Export:
    """A configuration in the words of one target.

    Attributes:
        target: What it is for.
        text: The export, to be printed or written to a file; ends with a line break.
        notes: Sentences its reader must know; where the format has comments, they stand in the text as well.
        unheld: The settings that the target has no place for; each is described in `notes`.
    """

    target: Target
    text: str
    notes: tuple[str, ...]
    unheld: tuple[UnsupportedSetting, ...]


def _write_python(settings: Settings) -> str:
    lines = [f"    {json.dumps(name)}: {_quote(value)}," for name, value in settings.items()]
    return "\n".join(["{", *lines, "}"])


def _quote(value: Setting) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _write_json(settings: Settings) -> str:
    return json.dumps(settings, indent=2)


def _write_yaml(settings: Settings) -> str:
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in settings.items())


def _write_yaml_for_lightning(settings: Settings) -> str:
    return "\n".join(["data:", *(f"  {line}" for line in _write_yaml(settings).splitlines())])


def _write_variables(settings: Settings) -> str:
    """Write assignments without quotes, which not every reader of such files takes away."""
    words = {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
    return "\n".join(f"{name}={word}" for name, word in words.items())


def _write_flags(settings: Settings) -> str:
    """Write command-line flags; one that is off is left out."""
    flags = ((name, value) for name, value in settings.items() if value is not False)
    return " ".join(name if value is True else f"{name} {value}" for name, value in flags)


def _add_for_accelerate(settings: Settings) -> Settings:
    """Keep the batch size per process, and let copies from pinned memory overlap with the step."""
    return {"split_batches": False, "non_blocking": settings["pin_memory"]}


def _name_variable(name: str) -> str:
    return f"DATALOADER_{name.upper()}"


def _names_for(target: Target) -> dict[str, str]:
    return {knob.name: knob.export_names[target] for knob in TABLE if target in knob.export_names}


_SAME: Final = {name: name for name in LOADER_ARGUMENTS}
_DEFAULTS: Final[Settings] = {knob.name: knob.default for knob in WORKER_SETTINGS}  # where nobody sets them
_REMARKS: Final[Mapping[str, str]] = {
    "multiprocessing_context": 'call torch.multiprocessing.set_start_method("{value}") before anything else',
    "non_blocking": "copy batches with batch.to(device, non_blocking=True)",
} | {knob.name: knob.instruction for knob in TABLE if knob.instruction is not None}


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """Who reads an export, and what it can say."""

    reader: str
    names: Mapping[str, str]  # of the settings that it holds
    write: Callable[[Settings], str]
    add: Callable[[Settings], Settings] | None = None  # what gives the tuned settings their meaning there
    own: Settings = field(default_factory=lambda: _DEFAULTS)  # what it does by itself where it holds no setting
    remarks: Mapping[str, str] = field(default_factory=dict)  # on settings that it does not hold
    write_own: Callable[[str], str] | None = None  # how it calls arguments of the user's factory; None for not at all
    hint: str = ""
    has_comments: bool = True  # that start with #


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
        {name: f"dataloader_{name}" for name in LOADER_ARGUMENTS} | _names_for("hf"),
        _write_yaml,
        remarks={
            "batch_size": "the Trainer makes batches of per_device_train_batch_size, 8 if you leave that out",
            "non_blocking": "give accelerator_config={{'non_blocking': True}} beside it",
        },
    ),
    "accelerate": ExportTarget(
        "accelerate.utils.DataLoaderConfiguration",
        {"non_blocking": "non_blocking"},
        _write_python,
        add=_add_for_accelerate,
        remarks=dict.fromkeys(
            LOADER_ARGUMENTS, "give it to the DataLoader (--to kwargs); Accelerator.prepare() keeps it"
        ),
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


def export(profile: TunedProfile, to: Target, *, force: bool = False) -> Export:
    """Write a tuned configuration in the words of another library.

    Args:
        profile: A profile of a tuned file. It is exported as it was tuned, and not fitted to this machine.
        to: What will read the export.
        force: Export a setting even if the target cannot keep its guarantee because of it.

    Returns:
        The text, and what the target cannot hold.

    Raises:
        UsageError: There is no such target, or it loses a guarantee and `force` is not given.
    """
    if to not in _TARGETS:
        raise UsageError(f"{to!r} is none of {', '.join(TARGETS)}.")
    gives_up_resuming = to == "statefuldataloader" and not profile.dataloader.in_order
    if gives_up_resuming and not force:
        raise UsageError(
            f"Profile {profile.name} has in_order=False: StatefulDataLoader then gives no guarantee that it resumes "
            "where it stopped. Tune with --fix in_order=true, or give --force to do without."
        )
    target = _TARGETS[to]
    settings = profile.workload.leave_out_decided(_list_settings(profile.config))
    unheld = (*_find_unheld(target, settings), *_list_unheld_knobs(target, profile))
    notes = [_describe_batch_size(target, profile.dataloader.batch_size)]
    notes += [f"{target.hint}."] if target.hint else []
    notes += ["With in_order=False nothing guarantees that it resumes where it stopped."] if gives_up_resuming else []
    notes += [setting.describe() for setting in unheld]
    return Export(to, _write(target, profile, settings, notes), tuple(notes), unheld)


def _write(target: ExportTarget, profile: TunedProfile, settings: Settings, notes: list[str]) -> str:
    held = {target.names[name]: value for name, value in settings.items() if name in target.names}
    if target.write_own is not None:
        held |= {target.write_own(name): value for name, value in profile.config.knobs.items()}
    added = target.add(settings) if target.add is not None else {}
    comments = [f"# {line}" for line in (_describe_source(profile, target), *notes)] if target.has_comments else []
    return "\n".join([*comments, target.write({**held, **added}), ""])


def _list_settings(config: LoaderConfig) -> Settings:
    """List what a configuration sets, in the order of `ALL`; what counts only with workers is left out without them."""
    settings = config.loader_kwargs() | {name: True for name, value in config.process if value is True}
    settings |= settings_beside_loader(config)
    return {name: settings[name] for name in ALL if name in settings}


def _find_unheld(target: ExportTarget, settings: Settings) -> tuple[UnsupportedSetting, ...]:
    unheld = [_explain(target, name, value) for name, value in settings.items() if name not in target.names]
    remark = target.remarks.get("batch_size")
    if "batch_size" in target.names and remark and "batch_size" not in settings:
        unheld.insert(0, UnsupportedSetting("batch_size", None, is_lost=True, remark=remark))
    return tuple(unheld)


def _list_unheld_knobs(target: ExportTarget, profile: TunedProfile) -> list[UnsupportedSetting]:
    """List the arguments of the user's own factory, where the target has no place for them."""
    if target.write_own is not None:
        return []
    remark = f"give it to {profile.workload.dataset}"
    return [
        UnsupportedSetting(name, value, is_lost=True, remark=remark) for name, value in profile.config.knobs.items()
    ]


def _explain(target: ExportTarget, name: str, value: Setting) -> UnsupportedSetting:
    if target.own.get(name) == value:
        return UnsupportedSetting(name, value, is_lost=False, remark="it is what happens anyway")
    remark = {**_REMARKS, **target.remarks}[name].format(value=value)
    return UnsupportedSetting(name, value, is_lost=True, remark=remark)


def _describe_batch_size(target: ExportTarget, size: int | None) -> str:
    name = target.names.get("batch_size", "batch_size")
    if size is None:
        return f"{name} is not set: this workload makes its own batches."
    return f"{name} is per process: N processes take N x {size} samples a step."


def _describe_source(profile: TunedProfile, target: ExportTarget) -> str:
    """Say what was tuned where, in one line whatever the names in the file contain."""
    there = profile.hardware
    gpu = f"{there.gpu_count} x {there.gpu}" if there.gpu else "no GPU"
    words = (
        f"For {target.reader}: profile {profile.name} of {profile.workload.dataset}, tuned by dltune "
        f"{profile.software.dltune} on {profile.created_at:%Y-%m-%d} with {there.usable_cpus:g} CPUs and {gpu}."
    )
    return repr(words)[1:-1]  # a line break in a name must not end the comment
