"""Files of schema version 1, written by the dltune that knew no other, are read, shown, checked and saved into."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli.main import cli
from autotune.profiles.file import read_file
from autotune.profiles.load import load
from autotune.profiles.saving import save_profile
from autotune.profiles.schema import SCHEMA_ID, BatchSizeResult, PastResult, TunedProfile
from autotune.profiles.upgrade import upgrade
from tests.builders import GIB, make_full_profile, make_profile

FILES = Path(__file__).parent / "files"
EVERY_FIELD = FILES / "every_field.v1.json"
TWO_PROFILES = FILES / "two_profiles.v1.json"
SHORT_RUN = FILES / "short_run.v1.json"  # of a real run
CAME_LATER = {"cold", "explain", "is_loader", "knobs", "main", "ranks", "split", "start_method"}  # fields of a request
OTHER_DEFAULTS = {"trial_seconds": 3.0, "world_size": 1}  # of a request, when the file was written
each_file = pytest.mark.parametrize("path", [EVERY_FIELD, TWO_PROFILES, SHORT_RUN], ids=lambda path: path.name)


def make_profile_of_every_field() -> TunedProfile:
    """Build what `every_field.v1.json` tells, in the terms of today."""
    full = make_full_profile()
    best = BatchSizeResult(batch_size=64, config=full.config, samples_per_second=1800.0)
    changes: dict[str, Any] = {"bottleneck": "io", "by_batch_size": (best,), "peak_gpu_bytes": GIB}
    changes |= {"copy_bytes_per_second": 7.4e6, "copy_ceiling": 2900.0}
    december = datetime(2025, 12, 1, tzinfo=UTC)
    past = PastResult(created_at=december, config=full.config, samples_per_second=1700.0, torch="2.9.0")
    asked = {name: value for name, value in (full.request or {}).items() if name not in CAME_LATER} | OTHER_DEFAULTS
    asked["workload"] = {name: value for name, value in asked["workload"].items() if name not in CAME_LATER}
    changed = {"result": full.result.model_copy(update=changes), "history": (past,), "request": asked}
    return full.model_copy(update=changed)


def copy_to_any_machine(path: Path, folder: Path) -> Path:
    """Copy a file as if it had been tuned on a machine that every other can stand in for."""
    document = json.loads(path.read_text())
    smallest = {"usable_cpus": 0.01, "memory_limit_bytes": 1, "shm_limit_bytes": 1, "nofile_limit": 1}
    for profile in document["profiles"]:
        profile["hardware"] |= smallest
    copied = folder / "dltune.json"
    copied.write_text(json.dumps(document))
    return copied


# Reading


def test_every_field_is_read_in_the_terms_of_today() -> None:
    assert read_file(EVERY_FIELD).profiles == (make_profile_of_every_field(),)


def test_profiles_that_hold_only_what_they_must_are_read() -> None:
    assert read_file(TWO_PROFILES).profiles == (make_profile("cpu-4c-plain"), make_profile("by-hand"))


@each_file
def test_training_code_loads_the_settings_that_were_written(path: Path, tmp_path: Path) -> None:
    profile = json.loads(path.read_text())["profiles"][0]
    written = profile["dataloader"] | profile["process"]
    kwargs = load(copy_to_any_machine(path, tmp_path), profile=profile["name"]).loader_kwargs()
    assert set(kwargs) >= {"batch_size", "num_workers", "pin_memory"}
    assert kwargs == {name: written[name] for name in kwargs}


@each_file
@pytest.mark.parametrize(
    "command", [("show",), ("check", "--no-workload"), ("export", "--to", "yaml"), ("report",)], ids=" ".join
)
def test_commands_take_it(command: tuple[str, ...], path: Path, workdir: Path) -> None:
    copy_to_any_machine(path, workdir)
    name = json.loads(path.read_text())["profiles"][0]["name"]
    result = CliRunner().invoke(cli, [*command, "--profile", name], prog_name="dltune")
    assert result.exit_code in ((0, 1) if command[0] == "check" else (0,)), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.output


# Saving


def test_saving_into_it_upgrades_the_file_and_keeps_what_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "dltune.json"
    document = json.loads(EVERY_FIELD.read_text())
    document["written_by"] = "a newer dltune"
    document["profiles"][0]["result"]["baseline"]["mood"] = "good"
    path.write_text(json.dumps(document))
    with pytest.warns(UserWarning, match="ignored unknown fields"):
        save_profile(path, make_profile("new"))
    written = json.loads(path.read_text())
    assert (written["$schema"], written["schema_version"], written["written_by"]) == (SCHEMA_ID, 2, "a newer dltune")
    assert written["profiles"][0]["result"]["baseline"].pop("mood") == "good"
    del written["written_by"]
    path.write_text(json.dumps(written))
    assert read_file(path).profiles == (make_profile_of_every_field(), make_profile("new"))


def test_a_profile_that_is_replaced_becomes_history_beside_the_history_that_it_had(tmp_path: Path) -> None:
    path = Path(shutil.copy(EVERY_FIELD, tmp_path / "dltune.json"))
    before = make_profile_of_every_field()
    save_profile(path, make_full_profile())
    (profile,) = read_file(path).profiles
    assert profile.history[0] == before.history[0]
    assert [past.config for past in profile.history] == [before.config, before.config]


# Anything


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
NAMES = ["profiles", "result", "limits", "evidence", "history", "trials", "rounds", "by_batch_size", "baseline"]
NAMES += ["dataloader", "process", "config", "bottleneck", "contributions", "status", "expected", "curve", "importance"]
OBJECTS = st.recursive(
    JSON,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6),
    max_leaves=20,
)


@given(document=st.fixed_dictionaries({"schema_version": st.just(1)}, optional=dict.fromkeys(NAMES, OBJECTS)) | JSON)
def test_whatever_stands_in_a_file_its_upgrade_raises_nothing_and_is_not_upgraded_again(document: Any) -> None:
    found = upgrade(document)
    assert repr(upgrade(found)) == repr(found)  # NaN is not equal to itself


@given(document=OBJECTS)
def test_a_document_of_another_version_is_left_as_it_is(document: Any) -> None:
    assert upgrade(document) is document
    newer = {"schema_version": 2, "profiles": document}
    assert upgrade(newer) is newer
