"""Exports lose no setting silently, and no text of a file becomes another key or ends a comment."""

from __future__ import annotations

import ast
import json
from typing import get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli import show
from autotune.config import LoaderConfig, ProcessSettings
from autotune.errors import UsageError
from autotune.profiles.export import LIBRARIES, TARGETS, Export, Library, Target, export, translate
from autotune.profiles.load import TunedLoader
from tests.builders import make_config, make_profile

WITH_COMMENTS = tuple(target for target in TARGETS if target not in ("timm", "json"))
PLAIN = make_config(0, batch_size=16)
WORKERS = make_config(2, 5, 64, pin_memory=True, persistent_workers=True)
UNUSUAL = make_config(
    2, 4, 8, ProcessSettings(sharing_strategy="file_system", multiprocessing_context="spawn"), in_order=False
)
OWN_BATCHES = make_config(2, 2, None)
ON_GPU = make_config(
    2, 2, 64, ProcessSettings(non_blocking=True, device_prefetch=True), pin_memory=True, persistent_workers=True
)
CONFIGS = {"plain": PLAIN, "workers": WORKERS, "unusual": UNUSUAL, "own_batches": OWN_BATCHES, "on_gpu": ON_GPU}
WORKLOAD = make_profile().workload


def export_config(config: LoaderConfig, to: Target) -> Export:
    return export(make_profile(dataloader=config.dataloader, process=config.process), to)


def list_lost(config: LoaderConfig, to: Target) -> list[str]:
    """List the settings that an export names as not supported."""
    return [note.partition("=")[0] for note in export_config(config, to).notes if " is not supported by " in note]


WORKER_NAMES = ["prefetch_factor", "persistent_workers", "in_order", "multiprocessing_context"]


@pytest.mark.parametrize(
    ("to", "unusual", "on_gpu"),
    [
        ("statefuldataloader", ["sharing_strategy"], ["non_blocking", "device_prefetch"]),
        ("hf", ["sharing_strategy"], ["device_prefetch"]),
        ("lightning", ["sharing_strategy"], ["device_prefetch"]),
        ("accelerate", [], ["device_prefetch"]),  # whose loader is made by make_loader
        ("timm", [*WORKER_NAMES, "sharing_strategy"], []),
        ("yaml", [], []),
        ("json", [], []),
    ],
)
def test_each_target_names_the_settings_that_it_does_not_support(
    to: Target, unusual: list[str], on_gpu: list[str]
) -> None:
    assert (list_lost(UNUSUAL, to), list_lost(ON_GPU, to)) == (unusual, on_gpu)


@pytest.mark.parametrize("to", ["hf", "timm"])
def test_trainers_that_make_batches_need_a_batch_size(to: Target) -> None:
    assert any("has no batch size" in note for note in export_config(OWN_BATCHES, to).notes)


def test_values_that_timm_uses_anyway_are_not_mentioned_and_workers_are_kept_alive_only_if_there_are_any() -> None:
    assert list_lost(make_config(4, 2, 64, persistent_workers=True), "timm") == list_lost(PLAIN, "timm") == []
    assert translate(WORKLOAD, PLAIN, "timm")[0]["persistent_workers"] is False


@pytest.mark.parametrize("to", LIBRARIES)
def test_defaults_that_old_versions_reject_and_settings_that_the_users_loader_rejects_are_left_out(to: Library) -> None:
    assert [name for name in translate(WORKLOAD, WORKERS, to)[0] if "in_order" in name] == []
    decided = WORKLOAD.model_copy(update={"loader_class": "m.L", "loader_decides": ("pin_memory", "in_order")})
    arguments, notes = translate(decided, UNUSUAL, to)
    left = [one for one in (*arguments, *notes) if "pin_mem" in one or "in_order=" in one]
    assert left == ([notes[-1]] if to == "statefuldataloader" else [])


@pytest.mark.parametrize("to", TARGETS)
def test_the_batch_size_is_described_as_per_process_and_notes_are_comments(to: Target) -> None:
    assert "per process: N processes use N x 64" in export_config(WORKERS, to).notes[0]
    made = export_config(UNUSUAL, to)
    comments = [line.removeprefix("# ") for line in made.text.splitlines() if line.startswith("# ")]
    assert comments[1:] == (list(made.notes) if to in WITH_COMMENTS else [])


def test_a_stateful_loader_without_order_is_noted_because_it_may_not_resume() -> None:
    made = export_config(UNUSUAL, "statefuldataloader")
    assert '"in_order": False' in made.text
    assert any("does not guarantee to resume" in note for note in made.notes)


def test_what_load_returns_is_exported_as_its_profile() -> None:
    profile = make_profile()
    assert export(TunedLoader(profile, profile.config), "json") == export(profile, "json")


def test_an_unknown_target_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'pickle' is not one of hf, lightning"):
        export(make_profile(), "pickle")  # type: ignore[arg-type]  # this is the mistake under test


@pytest.mark.parametrize("name", CONFIGS)
def test_json_and_yaml_hold_the_whole_configuration(name: str) -> None:
    config = CONFIGS[name]
    expected = config.loader_kwargs()
    expected |= {"sharing_strategy": config.process.sharing_strategy} if config.dataloader.num_workers else {}
    expected |= {name: True for name in ("non_blocking", "device_prefetch") if getattr(config.process, name)}
    assert json.loads(export_config(config, "json").text) == expected
    assert yaml.safe_load(export_config(config, "yaml").text) == expected


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("to", [library for library in LIBRARIES if library != "timm"])
def test_every_text_is_read_back_as_the_arguments_of_its_library(to: Library, name: str) -> None:
    read = {"hf": yaml.safe_load, "lightning": lambda text: yaml.safe_load(text)["data"]}.get(to, ast.literal_eval)
    assert read(export_config(CONFIGS[name], to).text) == translate(WORKLOAD, CONFIGS[name], to)[0]


def test_timm_gets_flags_and_none_for_what_is_off() -> None:
    assert export_config(WORKERS, "timm").text == "--workers 2 --pin-mem --batch-size 64\n"
    plain = export_config(PLAIN, "timm")
    assert plain.text == "--workers 0 --batch-size 16\n"
    assert "timm before 1.0.29 fails with --workers 0" in plain.notes[-1]


@pytest.mark.parametrize("to", WITH_COMMENTS)
@given(label=st.text(min_size=1), dataset=st.text())
def test_no_text_of_a_file_ends_a_comment_or_becomes_a_key(to: Target, label: str, dataset: str) -> None:
    hostile = make_profile(label=label, workload=WORKLOAD.model_copy(update={"dataset": dataset}))
    text, usual = (export(profile, to).text.splitlines() for profile in (hostile, make_profile()))
    assert len(text) == len(usual)
    assert [line for line in text if line[:1] != "#"] == [line for line in usual if line[:1] != "#"]


def test_the_command_line_offers_every_target() -> None:
    assert show.TARGETS == TARGETS
    assert set(TARGETS) == {*get_args(Library), "json", "yaml"}
