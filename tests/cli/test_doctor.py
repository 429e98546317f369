from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from autotune.cli.conflicts import PACKAGE_DIR, ConflictingPackage
from autotune.cli.doctor_checks import DoctorCheck, SystemFacts, collect_facts, run_checks
from click.testing import CliRunner

from autotune.cli.doctor import describe_checks
from autotune.cli.main import cli
from autotune.runner.sandbox import SandboxSupport
from autotune.system.cgroups import CpuThrottling
from autotune.system.mounts import Mount
from autotune.system.versions import TorchVersion
from tests.builders import GIB, MIB, make_machine


def examine_here(machine: dict[str, Any] | None = None, **changes: Any) -> tuple[DoctorCheck, ...]:
    """Examine a machine of 4 CPUs with many open files, torch, and nothing else to tell."""
    usual: dict[str, Any] = {
        "machine": make_machine(**{"nofile_limit": 65536} | (machine or {})),
        "sandbox": SandboxSupport(),
        "torch": TorchVersion("2.13.0", None),
    }
    return run_checks(SystemFacts(**usual | changes))


def has_problem(checks: tuple[DoctorCheck, ...]) -> bool:
    return any(check.state == "problem" for check in checks)


def find(checks: tuple[DoctorCheck, ...], name: str) -> DoctorCheck:
    (check,) = [check for check in checks if check.name == name]
    return check


def make_quota(periods: int, throttled: int, seconds: float = 0.0) -> CpuThrottling:
    return CpuThrottling(periods=periods, throttled_periods=throttled, throttled_seconds=seconds)


def make_storage(filesystem: str, rotational: bool | None = None) -> Mount:
    return Mount(
        path=Path("/data"), filesystem=filesystem, device="/dev/sda1", mount_point="/data", rotational=rotational
    )


def test_a_healthy_machine_needs_no_fix() -> None:
    checks = examine_here(sandbox=SandboxSupport(own_shm=True, own_pids=True, cgroup=Path("/x")))
    assert {(check.state, check.fix) for check in checks} == {("ok", "")}
    assert not has_problem(checks)


@pytest.mark.parametrize(
    ("changes", "name", "fixes"),
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
def test_what_stands_in_the_way_comes_with_its_fix(
    changes: dict[str, object], name: str, fixes: tuple[str, ...]
) -> None:
    check = find(examine_here(changes), name)
    assert check.state == "warning"
    assert [fix for fix in fixes if fix not in check.fix] == []


def test_without_torch_nothing_can_be_tuned() -> None:
    checks = examine_here(torch=None)
    assert find(checks, "torch").state == "problem"
    assert has_problem(checks)


@pytest.mark.parametrize(("cuda", "state"), [(None, "warning"), ("13.0", "ok")])
def test_a_torch_without_cuda_beside_a_gpu_is_told(cuda: str | None, state: str) -> None:
    assert find(examine_here(torch=TorchVersion("2.13.0", cuda), gpus=("NVIDIA H200",)), "torch").state == state


@pytest.mark.parametrize(("throttled", "state"), [(10, "ok"), (11, "warning")])
def test_throttling_is_a_warning_from_more_than_one_period_in_a_hundred_on(throttled: int, state: str) -> None:
    check = find(examine_here(quotas=(make_quota(1000, throttled),)), "CPU throttling")
    assert check.state == state
    assert check.finding.startswith(f"{throttled / 10}% of 1,000 periods")


def test_of_several_quotas_the_one_used_up_most_counts() -> None:
    quotas = (make_quota(1000, 0), make_quota(200, 50, seconds=12.5), make_quota(0, 0))
    finding = find(examine_here(quotas=quotas), "CPU throttling").finding
    assert finding == "25.0% of 200 periods since the cgroup was made, 12.5 s in all"


def test_without_a_quota_nothing_is_throttled() -> None:
    assert find(examine_here(quotas=(make_quota(0, 0),)), "CPU throttling").state == "ok"


def test_forked_workers_are_what_the_doctor_likes_to_see() -> None:
    check = find(examine_here(start_method="fork"), "start method")
    assert check.state == "ok"
    assert "share the dataset's memory" in check.finding


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_start_slowly_and_need_pickling(method: str) -> None:
    check = find(examine_here(start_method=method), "start method")
    assert check.state == "warning"
    assert check.finding.startswith(f"{method}, the default of Python")
    assert "picklable" in check.fix
    assert "multiprocessing_context='fork'" in check.fix


@pytest.mark.parametrize(
    ("filesystem", "rotational", "state", "words"),
    [
        ("nfs4", None, "warning", "many more workers than CPUs"),
        ("fuse.s3fs", None, "warning", "many more workers than CPUs"),
        ("overlay", None, "warning", "volume"),
        ("ext4", True, "warning", "SSD"),
        ("ext4", False, "ok", "does not turn"),
        ("ext4", None, "ok", "nothing tells"),
        ("tmpfs", None, "ok", "in memory"),
    ],
)
def test_the_storage_of_the_data_is_told_with_what_it_means_for_workers(
    filesystem: str, rotational: bool | None, state: str, words: str
) -> None:
    check = find(examine_here(storage=make_storage(filesystem, rotational)), "data")
    assert check.state == state
    assert check.finding.startswith(f"/data: {filesystem} from /dev/sda1")
    assert words in check.finding + check.fix


def test_nothing_is_said_of_data_that_nobody_named() -> None:
    assert "data" not in [check.name for check in examine_here()]


@pytest.mark.parametrize(
    ("conflict", "words"),
    [
        (ConflictingPackage(Path("/work/autotune")), "rename it"),
        (ConflictingPackage(Path("/site/autotune"), "autotune"), "pip uninstall autotune"),
        (ConflictingPackage(PACKAGE_DIR.resolve(), "autotune"), "--force-reinstall dltune"),
    ],
)
def test_a_second_package_of_our_name_is_told_with_both_places_and_the_fix(
    conflict: ConflictingPackage, words: str
) -> None:
    check = find(examine_here(conflicts=(conflict,)), "other autotune")
    assert check.state == "warning"
    assert str(conflict.path) in check.finding
    assert f"ours at {PACKAGE_DIR}" in check.finding
    assert words in check.fix


def test_a_long_tmpdir_is_named_with_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "x" * 90)
    check = find(examine_here(), "TMPDIR")
    assert check.state == "warning"
    assert "(95 characters)" in check.finding


def test_a_part_of_the_sandbox_that_is_missing_is_said_with_what_stands_in_for_it_and_why() -> None:
    sandbox = SandboxSupport(missing=("private /dev/shm: unshare: Operation not permitted",))
    check = find(examine_here(sandbox=sandbox), "private /dev/shm")
    assert "shared" in check.finding
    assert "Operation not permitted" in check.finding


def test_a_folder_that_cannot_be_written_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    checks = examine_here()
    assert find(checks, "this folder").state == "problem"
    assert has_problem(checks)


def test_a_fix_stands_below_its_finding() -> None:
    checks = (DoctorCheck(name="open files", state="warning", finding="1,024", fix="ulimit -n 4096"),)
    first, second = describe_checks(checks).splitlines()
    assert first.split() == ["warning", "open", "files", "1,024"]
    assert second.strip() == "-> ulimit -n 4096"


def test_what_is_read_here_can_be_examined(workdir: Path) -> None:
    names = [check.name for check in run_checks(collect_facts(workdir))]
    assert {"torch", "CPU throttling", "memory", "start method", "data", "other autotune"} <= set(names)


def test_the_command_tells_people_and_programs_the_same(workdir: Path) -> None:
    told = CliRunner().invoke(cli, ["doctor", "--data", "."])
    document = CliRunner().invoke(cli, ["doctor", "--data", ".", "--json"])
    assert told.exit_code == document.exit_code == 0
    checks = [DoctorCheck.model_validate(check) for check in json.loads(document.output)]
    assert all(check.name in told.output for check in checks)
    assert {"start method", "data"} <= {check.name for check in checks}


def test_data_that_is_not_there_is_a_usage_error(workdir: Path) -> None:
    result = CliRunner().invoke(cli, ["doctor", "--data", "nowhere"])
    assert result.exit_code == 2
    assert "nowhere: No such file or directory. Give the folder" in result.stderr
