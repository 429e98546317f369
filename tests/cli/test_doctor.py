"""The checks of the doctor, and their fixes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from autotune.cli.doctor import Finding, check_folders, check_machine, check_packages, check_python
from autotune.cli.main import cli
from autotune.system.cgroups import CpuThrottling
from autotune.system.software import TorchVersion
from tests.builders import GIB, MIB, make_machine, write_files


def find(found: Iterable[Finding], name: str) -> Finding:
    (one,) = [one for one in found if one.name == name]
    return one


def check(*quotas: CpuThrottling, **machine: Any) -> list[Finding]:
    return list(check_machine(make_machine(**{"nofile_limit": 65536} | machine), quotas))


def make_quota(periods: int, throttled: int) -> CpuThrottling:
    return CpuThrottling(periods=periods, throttled_periods=throttled)


def test_a_healthy_machine_needs_no_fix(tmp_path: Path) -> None:
    found = [
        *check(make_quota(0, 0)),
        *check_python(TorchVersion("2.13.0", None), (), "fork"),
        *check_folders("/tmp", tmp_path),
        check_packages([str(tmp_path)], ["dltune"]),
    ]
    assert {(one.state, one.fix) for one in found} == {("ok", "")}


@pytest.mark.parametrize(
    ("machine", "name", "fixes"),
    [
        ({"shm_limit_bytes": 64 * MIB, "shm_free_bytes": 64 * MIB}, "/dev/shm", ("--shm-size", "emptyDir", "Slurm")),
        ({"shm_free_bytes": 64 * MIB}, "/dev/shm", ("ls -l /dev/shm",)),
        ({"shm_writable": False}, "/dev/shm", ("num_workers=0",)),
        (
            {"memory_available_bytes": 300 * MIB, "memory_limit_bytes": 512 * MIB},
            "memory",
            ("docker run --memory", "limits.memory", "Slurm --mem"),
        ),
        ({"memory_available_bytes": 300 * MIB, "memory_limit_bytes": 64 * GIB}, "memory", ("other processes",)),
        ({"nofile_limit": 1024}, "open files", ("ulimit -n",)),
        ({"quota_cpus": 0.5}, "CPUs", ("--cpus", "limits.cpu", "Slurm --cpus-per-task")),
    ],
)
def test_a_shortage_has_its_fix(machine: dict[str, Any], name: str, fixes: tuple[str, ...]) -> None:
    found = find(check(**machine), name)
    assert found.state == "warning"
    assert [fix for fix in fixes if fix not in found.fix] == []


def test_throttling_of_the_most_used_quota_above_one_percent_is_a_warning() -> None:
    for throttled, state in ((10, "ok"), (11, "warning")):
        found = find(check(make_quota(1000, throttled), make_quota(1000, 0), make_quota(0, 0)), "CPU throttling")
        assert (found.state, found.finding) == (state, f"{throttled / 10}% of 1,000 periods")


@pytest.mark.parametrize(
    ("torch", "gpus", "state"),
    [
        (None, (), "problem"),
        (TorchVersion("2.13.0", None), (), "ok"),
        (TorchVersion("2.13.0", None), ("NVIDIA H200",), "warning"),
        (TorchVersion("2.13.0", "13.0"), ("NVIDIA H200",), "ok"),
    ],
)
def test_torch_must_be_there_and_suit_the_gpu(torch: TorchVersion | None, gpus: tuple[str, ...], state: str) -> None:
    assert find(check_python(torch, gpus, "fork"), "torch").state == state


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_start_slowly(method: str) -> None:
    found = find(check_python(TorchVersion("2.13.0", None), (), method), "start method")
    assert found.state == "warning"
    assert found.finding.startswith(f"{method}, the default of Python")
    assert "multiprocessing_context='fork'" in found.fix


def test_a_long_folder_for_temporary_files_is_a_warning_and_a_read_only_folder_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find(check_folders("/tmp/" + "x" * 90, tmp_path), "TMPDIR").state == "warning"
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    assert find(check_folders("/tmp", tmp_path), "this folder").state == "problem"


def test_a_machine_without_a_folder_for_temporary_files_is_a_problem(tmp_path: Path) -> None:
    assert find(check_folders("", tmp_path), "TMPDIR").state == "problem"


@pytest.mark.parametrize(
    ("file", "installed", "found", "fix"),
    [
        ("autotune/__init__.py", ["dltune"], "{folder}/autotune/__init__.py", "rename it"),
        ("autotune.py", ["dltune"], "{folder}/autotune.py", "rename it"),
        ("autotune/notes.txt", ["dltune", "autotune"], "distribution autotune", "pip uninstall autotune"),
        ("autotune/notes.txt", [], "none", ""),
    ],
)
def test_another_package_of_the_same_name_is_a_warning(
    tmp_path: Path, file: str, installed: list[str], found: str, fix: str
) -> None:
    write_files(tmp_path, {file: ""})
    one = check_packages([str(tmp_path), str(tmp_path / "missing")], installed)
    assert (one.state == "ok", one.finding) == (not fix, found.format(folder=tmp_path.resolve()))
    assert fix in one.fix


def test_the_command_prints_the_same_for_people_and_programs(workdir: Path) -> None:
    del workdir
    text = CliRunner().invoke(cli, ["doctor"])
    document = CliRunner().invoke(cli, ["doctor", "--json"])
    assert text.exit_code == document.exit_code == 0
    names = [one["name"] for one in json.loads(document.output)]
    assert {"torch", "CPUs", "memory", "/dev/shm", "open files", "start method", "TMPDIR"} <= {*names}
    assert all(name in text.output for name in names)
