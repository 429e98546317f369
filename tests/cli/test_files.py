"""`dltune show`, `report`, `export`, `merge`, `check` and `retune`: what they print, write and reject."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from autotune.checking import CheckResult, Remeasurement
from autotune.cli.main import cli
from autotune.cli.tune import describe_check
from autotune.config import ProcessSettings
from autotune.profiles.schema import TunedFile
from autotune.profiles.store import read_file
from tests.builders import make_full_profile, make_hardware, make_profile, make_search_record, write_profiles

pytestmark = pytest.mark.usefixtures("workdir")
ROOT = str(Path(__file__).parents[2])
NEWER = make_profile(created_at=make_profile().created_at + timedelta(days=1))


def invoke(*arguments: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(cli, arguments, prog_name="dltune")


def save(**changes: Any) -> None:
    write_profiles(Path(), make_full_profile(**changes))


def save_two_workloads() -> None:
    profile = make_profile()
    other = profile.workload.model_copy(update={"dataset": "pkg.data:make_other"})
    write_profiles(Path(), profile, make_profile(workload=other))


@pytest.mark.parametrize("folder_mode", [0o755, 0o777])
def test_neither_a_closed_pipe_nor_a_warning_makes_check_say_that_a_profile_is_out_of_date(
    workdir: Path, folder_mode: int
) -> None:
    write_profiles(Path(), make_profile())
    workdir.chmod(folder_mode)
    check = f"{sys.executable} -W error -m autotune check"
    environ = os.environ | {"PYTHONPATH": ROOT}
    for command in (f"{check} --no-workload | true", check):  # pkg.data does not exist
        ended = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            env=environ,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 2, ended.stderr
        assert "Traceback" not in ended.stderr
    assert ("every user can write it" in ended.stderr) == (folder_mode == 0o777)


def test_show_prints_the_named_profile_as_json() -> None:
    save_two_workloads()
    shown = invoke("show", "--profile", "pkg.data:make_other", "--json").stdout
    (profile,) = TunedFile.model_validate_json(shown).profiles
    assert profile.workload.dataset == "pkg.data:make_other"
    text = invoke("show").stdout
    for name in ("pkg.data:make_dataset", "pkg.data:make_other"):
        assert f'autotune.load("dltune.json", profile="{name}")' in text


@pytest.mark.parametrize(("text", "words"), [(None, "cannot be read"), ("{", "not a tuned file")])
def test_an_unreadable_file_is_an_error(text: str | None, words: str) -> None:
    if text is not None:
        Path("dltune.json").write_text(text)
    result = invoke("show")
    assert result.exit_code == 2
    assert words in result.stderr


def test_an_unknown_profile_is_an_error_that_lists_the_known_ones() -> None:
    save()
    result = invoke("show", "--profile", "other")
    assert result.exit_code == 2
    assert "pkg.data:make_dataset" in result.stderr


def test_a_file_does_not_control_the_terminal() -> None:
    save(label="\x1b]0;owned\x07")
    assert "\x1b" not in invoke("show").output
    assert json.loads(invoke("show", "--json").stdout)["profiles"][0]["label"] == "\x1b]0;owned\x07"


def test_a_report_replaces_the_one_before() -> None:
    save()
    for _ in range(2):
        result = invoke("report")
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "Wrote dltune-report.html.\n")


@pytest.mark.parametrize("command", [("report",), ("report", "--format", "md"), ("export", "--to", "yaml")])
def test_another_file_is_only_replaced_by_force(command: tuple[str, ...]) -> None:
    save()
    Path("thesis").write_text("My thesis")
    refused = invoke(*command, "-o", "thesis")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "thesis exists already. Pass --force to replace it." in refused.stderr
    assert Path("thesis").read_text() == "My thesis"
    assert invoke(*command, "-o", "thesis", "--force").exit_code == 0
    assert "My thesis" not in Path("thesis").read_text()


@pytest.mark.parametrize("command", [("report",), ("export", "--to", "json")])
@pytest.mark.parametrize("path", ["dltune.json", "./dltune.json"])
def test_the_tuned_file_itself_is_never_replaced(command: tuple[str, ...], path: str) -> None:
    save()
    before = Path("dltune.json").read_text()
    result = invoke(*command, "-o", path, "--force")
    assert result.exit_code == 1
    assert "is the tuned file itself" in result.stderr
    assert Path("dltune.json").read_text() == before


@pytest.mark.parametrize(
    ("path", "problem"), [("nowhere/loader.yaml", "its folder does not exist."), (".", "It is not a regular file.")]
)
def test_an_output_that_cannot_be_written_is_an_error(path: str, problem: str) -> None:
    save()
    result = invoke("export", "--to", "yaml", "-o", path, "--force")
    assert result.exit_code == 1
    assert f"{path} cannot be written: {problem}" in result.stderr


def test_an_export_is_printed_and_its_notes_are_on_stderr() -> None:
    save(process=ProcessSettings(sharing_strategy="file_system"))
    result = invoke("export", "--to", "timm")
    assert result.stdout == "--workers 4 --batch-size 64\n"
    assert "sharing_strategy='file_system' is not supported by timm" in result.stderr


def test_merge_joins_the_profiles_of_several_machines() -> None:
    for name, cpus in (("one", 4.0), ("two", 8.0)):
        Path(name).mkdir()
        write_profiles(Path(name), make_profile(hardware=make_hardware(usable_cpus=cpus)))
    result = invoke("merge", "one/dltune.json", "two/dltune.json", "-o", "all.json")
    assert result.exit_code == 0, result.output
    merged = TunedFile.model_validate_json(Path("all.json").read_text())
    assert sorted(one.hardware.usable_cpus for one in merged.profiles) == [4.0, 8.0]
    for output in ([], ["-o", "-"]):
        assert '"profiles"' in invoke("merge", "one/dltune.json", *output).stdout
    assert not Path("-").exists()


def test_merge_adds_to_its_output_and_replaces_nothing_newer_or_of_another_kind() -> None:
    write_profiles(Path(), NEWER, make_profile(label="other"))
    Path("older").mkdir()
    write_profiles(Path("older"), make_profile(), make_profile(label="new"))
    assert invoke("merge", "older/dltune.json", "-o", "dltune.json").exit_code == 0
    profiles = read_file(Path("dltune.json")).profiles
    assert {one.workload_id: one.created_at for one in profiles} == {
        NEWER.workload_id: NEWER.created_at,
        **dict.fromkeys(("other", "new"), make_profile().created_at),
    }
    Path("notes.json").write_text("mine")
    assert invoke("merge", "dltune.json", "-o", "notes.json").exit_code == 2
    assert Path("notes.json").read_text() == "mine"


def test_check_without_the_workload_compares_the_machine() -> None:
    save()
    result = invoke("check", "--no-workload")
    assert result.exit_code == 1
    assert "is out of date. Run: dltune retune\n" in result.stdout
    assert not json.loads(invoke("check", "--no-workload", "--json").stdout)["is_valid"]


def test_a_quick_check_needs_the_workload() -> None:
    save()
    result = invoke("check", "--quick", "--no-workload")
    assert result.exit_code == 2
    assert "cannot be combined with --no-workload" in result.stderr


def test_a_check_of_a_training_run_advises_to_train_again() -> None:
    save(search=make_search_record(sampler="training"))
    result = invoke("check")
    assert result.exit_code == 1
    assert "is out of date. Train again with dltune run" in result.stdout


def test_a_check_of_one_of_several_workloads_names_it_in_the_command_to_run() -> None:
    write_profiles(Path(), make_profile(label="train"), make_profile(label="val"))
    result = invoke("check", "--no-workload", "--profile", "val")
    assert "Run: dltune retune --profile val\n" in result.stdout


def test_an_error_of_a_check_is_no_reason_to_retune() -> None:
    assert invoke("check", "nothing.json").exit_code == 2


def test_a_check_reports_the_new_measurement() -> None:
    measured = Remeasurement(
        samples_per_second=900.0,
        predicted=1800.0,
        speedup=3.0,
        speedup_ci95=(2.9, 3.1),
        ratio_to_prediction=0.5,
        ratio_to_prediction_ci95=(0.4, 0.6),
        machine_change=1.1,
        noise=("Other processes used 120% of a CPU.",),
    )
    found = CheckResult(profile="mine", is_valid=False, reasons=("age 40 days",), remeasured=measured)
    assert describe_check(found, "dltune.json").splitlines() == [
        "Profile mine is out of date. Run: dltune retune",
        "  age 40 days",
        "  re-measured: 900/s of the predicted 1,800/s, 3.00x the baseline's throughput; "
        "the baseline reaches 110% of before",
        "  warning: Other processes used 120% of a CPU.",
    ]


@pytest.mark.parametrize("arguments", [("--output", "nowhere/new.json"), ()], ids=["the option", "the environment"])
def test_retune_writes_to_its_output(arguments: tuple[str, ...]) -> None:
    save()
    result = invoke("retune", *arguments, DLTUNE_OUTPUT="nowhere/new.json")
    assert result.exit_code == 1
    assert "nowhere/new.json cannot be written" in result.stderr
