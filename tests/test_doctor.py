from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from autotune.cli import cli
from autotune.containment import Containment
from autotune.doctor import Check, describe_checks, examine, has_problem
from tests.builders import MIB, make_machine


def find(checks: tuple[Check, ...], name: str) -> Check:
    (check,) = [check for check in checks if check.name == name]
    return check


def test_a_healthy_machine_needs_no_advice() -> None:
    checks = examine(make_machine(nofile_limit=65536), Containment(own_shm=True, own_pids=True, cgroup=Path("/x")))
    assert {check.state for check in checks} == {"ok"}
    assert not has_problem(checks)


@pytest.mark.parametrize(
    ("changes", "name", "fix"),
    [
        ({"shm_limit_bytes": 64 * MIB, "shm_free_bytes": 64 * MIB}, "/dev/shm", "--shm-size"),
        ({"shm_writable": False}, "/dev/shm", "num_workers=0"),
        ({"nofile_limit": 1024}, "open files", "ulimit -n"),
        ({"quota_cpus": 0.5}, "CPUs", "--cpus"),
    ],
)
def test_what_stands_in_the_way_comes_with_its_fix(changes: dict[str, object], name: str, fix: str) -> None:
    check = find(examine(make_machine(**changes), Containment()), name)
    assert check.state == "advice"
    assert fix in check.fix


def test_a_long_tmpdir_is_named_with_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "x" * 90)
    check = find(examine(make_machine(), Containment()), "TMPDIR")
    assert "(95 characters)" in check.finding


def test_a_wall_that_is_missing_is_said_with_what_stands_in_for_it_and_why() -> None:
    containment = Containment(missing=("private /dev/shm: unshare: Operation not permitted",))
    check = find(examine(make_machine(), containment), "private /dev/shm")
    assert "shared" in check.finding
    assert "Operation not permitted" in check.finding


def test_a_fix_stands_below_its_finding() -> None:
    checks = (Check(name="open files", state="advice", finding="1,024", fix="ulimit -n 4096"),)
    first, second = describe_checks(checks).splitlines()
    assert first.split() == ["advice", "open", "files", "1,024"]
    assert second.strip() == "-> ulimit -n 4096"


def test_the_command_tells_people_and_programs_the_same(workdir: Path) -> None:
    told = CliRunner().invoke(cli, ["doctor"])
    document = CliRunner().invoke(cli, ["doctor", "--json"])
    assert told.exit_code == document.exit_code == 0
    assert all(check["name"] in told.output for check in json.loads(document.output))


def test_a_folder_that_cannot_be_written_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    checks = examine(make_machine(), Containment())
    assert find(checks, "this folder").state == "problem"
    assert has_problem(checks)
