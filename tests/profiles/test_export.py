"""Exports as text: nothing is dropped in silence, and nothing in a name can break out of a comment."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest
from torch.utils.data import DataLoader

import autotune
from autotune.cli import export as export_command
from autotune.config import LoaderConfig, ProcessSettings
from autotune.errors import UsageError
from autotune.profiles.export import Export, export
from autotune.profiles.schema import TunedProfile
from autotune.profiles.targets import LOADER_ARGUMENTS, TARGETS, Target
from tests.builders import make_config, make_profile

DATA: Any = range(256)
WITH_COMMENTS = tuple(target for target in TARGETS if target not in ("timm", "json"))
PLAIN = make_config(0, batch_size=16)
WORKERS = make_config(2, 5, 64, pin_memory=True, persistent_workers=True)
UNUSUAL = make_config(
    2,
    4,
    8,
    ProcessSettings(sharing_strategy="file_system", multiprocessing_context="spawn"),
    persistent_workers=False,
    in_order=False,
)
OWN_BATCHES = make_config(2, 2, None)
ON_GPU = make_config(
    2, 2, 64, ProcessSettings(non_blocking=True, device_prefetch=True), pin_memory=True, persistent_workers=True
)
CONFIGS = {"plain": PLAIN, "workers": WORKERS, "unusual": UNUSUAL, "own_batches": OWN_BATCHES, "on_gpu": ON_GPU}


def make_profile_of(config: LoaderConfig, **changes: Any) -> TunedProfile:
    return make_profile(dataloader=config.dataloader, process=config.process, **changes)


def export_config(config: LoaderConfig, to: Target) -> Export:
    return export(make_profile_of(config), to, force=True)


def list_lost(made: Export) -> list[str]:
    return [setting.field for setting in made.unheld if setting.is_lost]


def strip_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("to", TARGETS)
def test_every_setting_is_in_the_export_or_named_as_not_held(to: Target, name: str) -> None:
    config = CONFIGS[name]
    made = export_config(config, to)
    words = {"num_workers": "workers", "pin_memory": "pin-mem", "sharing_strategy": "sharing_strategy"}
    settings = config.loader_kwargs() | {"sharing_strategy": config.process.sharing_strategy}
    settings |= {name: True for name in ("non_blocking", "device_prefetch") if getattr(config.process, name)}
    named = {setting.field for setting in made.unheld}
    body = strip_comments(made.text).lower().replace("batch-size", "batch_size")
    for field, value in settings.items():
        is_flag_off = to == "timm" and value is False
        is_meaningless = field == "sharing_strategy" and not config.dataloader.num_workers
        is_written = field in body or (to == "timm" and words.get(field, "?") in body)
        assert is_flag_off or is_meaningless or is_written != (field in named), field


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("to", TARGETS)
def test_a_note_says_what_becomes_of_each_setting_that_is_not_held(to: Target, name: str) -> None:
    made = export_config(CONFIGS[name], to)
    for setting in made.unheld:
        assert sum(note.startswith(f"{setting.field}={setting.value!r} is not held: ") for note in made.notes) == 1
        assert setting.is_lost != ("it is what happens anyway" in setting.remark)


@pytest.mark.parametrize("to", WITH_COMMENTS)
def test_the_notes_stand_in_the_export_where_its_format_has_comments(to: Target) -> None:
    made = export_config(UNUSUAL, to)
    comments = [line.removeprefix("# ") for line in made.text.splitlines() if line.startswith("# ")]
    assert comments[1:] == list(made.notes)


@pytest.mark.parametrize("to", TARGETS)
def test_the_batch_size_is_always_said_to_be_per_process(to: Target) -> None:
    first = export_config(WORKERS, to).notes[0]
    assert "per process" in first
    assert "64" in first
    assert "makes its own batches" in export_config(OWN_BATCHES, to).notes[0]


@pytest.mark.parametrize(
    ("to", "lost"),
    [
        ("kwargs", ["sharing_strategy"]),
        ("statefuldataloader", ["sharing_strategy"]),
        ("hf", ["sharing_strategy"]),
        ("lightning", ["sharing_strategy"]),
        ("accelerate", [*LOADER_ARGUMENTS, "sharing_strategy"]),
        (
            "timm",
            ["prefetch_factor", "persistent_workers", "in_order", "multiprocessing_context", "sharing_strategy"],
        ),
        ("yaml", []),
        ("json", []),
        ("env", []),
    ],
)
def test_what_each_target_loses_of_an_unusual_configuration(to: Target, lost: list[str]) -> None:
    assert list_lost(export_config(UNUSUAL, to)) == lost


@pytest.mark.parametrize(
    ("to", "lost"),
    [
        ("kwargs", ["non_blocking", "device_prefetch"]),
        ("hf", ["device_prefetch"]),
        ("accelerate", [*LOADER_ARGUMENTS[:-1], "device_prefetch"]),
        ("lightning", ["device_prefetch"]),
        ("timm", []),
        ("json", []),
    ],
)
def test_what_each_target_loses_of_the_way_to_a_gpu(to: Target, lost: list[str]) -> None:
    assert list_lost(export_config(ON_GPU, to)) == lost


@pytest.mark.parametrize("to", ["hf", "timm"])
def test_batches_of_the_workloads_own_have_no_place_where_a_trainer_makes_them(to: Target) -> None:
    assert list_lost(export_config(make_config(0, batch_size=None), to)) == ["batch_size"]


def test_what_a_target_does_anyway_is_named_but_not_lost() -> None:
    made = export_config(make_config(4, 2, 64, persistent_workers=True), "timm")
    assert [setting.field for setting in made.unheld] == [
        "prefetch_factor",
        "persistent_workers",
        "in_order",
        "sharing_strategy",
    ]
    assert list_lost(made) == []


def test_what_the_users_own_loader_decides_is_not_exported() -> None:
    workload = make_profile().workload.model_copy(update={"loader_class": "m.L", "loader_decides": ("in_order",)})
    assert "in_order" not in export(make_profile_of(make_config(2), workload=workload), "kwargs").text
    assert "in_order" in export(make_profile_of(make_config(2)), "kwargs").text


def test_a_stateful_loader_that_could_not_resume_is_refused_unless_forced() -> None:
    profile = make_profile_of(UNUSUAL)
    with pytest.raises(UsageError, match=r"in_order=False.*--fix in_order=true, or give --force"):
        export(profile, "statefuldataloader")
    assert "nothing guarantees that it resumes" in export(profile, "statefuldataloader", force=True).text


def test_an_unknown_target_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'pickle' is none of kwargs, statefuldataloader, hf"):
        export(make_profile(), "pickle")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_dict_literal_is_what_a_real_loader_takes(name: str) -> None:
    kwargs = ast.literal_eval(export_config(CONFIGS[name], "kwargs").text)
    assert kwargs == CONFIGS[name].loader_kwargs()
    own: dict[str, Any] = {"batch_sampler": [[0, 1]]} if name == "own_batches" else {}
    assert DataLoader(DATA, **kwargs, **own).num_workers == CONFIGS[name].dataloader.num_workers


@pytest.mark.parametrize("name", CONFIGS)
def test_json_holds_the_whole_configuration(name: str) -> None:
    config = CONFIGS[name]
    sharing = {"sharing_strategy": config.process.sharing_strategy} if config.dataloader.num_workers else {}
    copies = {name: True for name in ("non_blocking", "device_prefetch") if getattr(config.process, name)}
    assert json.loads(export_config(config, "json").text) == config.loader_kwargs() | sharing | copies


def test_a_shell_reads_the_variables(tmp_path: Path) -> None:
    (tmp_path / "loader.env").write_text(export_config(UNUSUAL, "env").text)
    shown = subprocess.run(
        ["/bin/sh", "-eu", "-c", "set -a; . ./loader.env; env"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = dict(line.split("=", 1) for line in shown.splitlines() if line.startswith("DATALOADER_"))
    assert found == {
        "DATALOADER_BATCH_SIZE": "8",
        "DATALOADER_NUM_WORKERS": "2",
        "DATALOADER_PREFETCH_FACTOR": "4",
        "DATALOADER_PIN_MEMORY": "false",
        "DATALOADER_PERSISTENT_WORKERS": "false",
        "DATALOADER_IN_ORDER": "false",
        "DATALOADER_MULTIPROCESSING_CONTEXT": "spawn",
        "DATALOADER_SHARING_STRATEGY": "file_system",
    }


def test_no_variable_is_one_that_dltune_takes_for_an_option() -> None:
    assert "DLTUNE" not in strip_comments(export_config(UNUSUAL, "env").text)


@pytest.mark.parametrize("to", WITH_COMMENTS)
@pytest.mark.parametrize("name", ["two\nlines", "two\rlines", "two\x85lines", "two\u2028lines"])
def test_a_line_break_in_a_name_never_ends_the_comment(to: Target, name: str) -> None:
    plain = export(make_profile("plain"), to).text
    assert len(export(make_profile(name), to).text.splitlines()) == len(plain.splitlines())


def test_the_command_line_offers_every_target() -> None:
    assert export_command.TARGETS == TARGETS == get_args(Target)


def test_the_public_function_takes_what_load_gives() -> None:
    profile = make_profile_of(WORKERS)
    loaded = autotune.TunedLoader(profile, profile.config, "exact")
    assert autotune.export(loaded.profile, "kwargs").text == export(profile, "kwargs").text
