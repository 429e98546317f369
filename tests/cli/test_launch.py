"""Launchers that start several of us: torchrun itself, and srun by its variables."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.cli.launch import LEADER, Launch, read_launch
from autotune.errors import UsageError
from autotune.profiles.file import read_file
from tests.faults.stage import QUICK, ROOT

COMMAND = ("-m", "autotune", "--dataset", "tests.misbehaving:make_honest", *QUICK, "--trials", "2")
pytestmark = pytest.mark.usefixtures("workdir", "leaves_nothing")


def make_environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def run_torchrun(*command: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command]
    return subprocess.run(launcher, env=make_environment(), capture_output=True, text=True, timeout=120, check=False)


def run_srun(*command: str) -> list[tuple[int, str]]:
    """Start two processes as srun does."""
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    tasks = [
        subprocess.Popen(
            [sys.executable, *command],
            env=make_environment(SLURM_PROCID=str(rank), **job),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [task.communicate(timeout=120)[1] for task in tasks]
    return [(task.returncode, words) for task, words in zip(tasks, said, strict=True)]


@pytest.mark.slow
def test_under_torchrun_the_first_process_tunes_for_all_of_them(workdir: Path) -> None:
    found = run_torchrun(*COMMAND)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("on this host; 2 processes reach") == 1
    (profile,) = read_file(workdir / "dltune.json").profiles
    assert (profile.workload.nproc_per_node, len(profile.result.ranks)) == (2, 2)


@pytest.mark.slow
def test_under_torchrun_an_error_is_said_once_and_all_end() -> None:
    found = run_torchrun("-m", "autotune", "--dataset", "tests.misbehaving:no_such_factory", *QUICK)
    assert found.returncode == 1
    assert found.stderr.count("Error: tests.misbehaving") == 1
    assert "rank      : 0 (local_rank: 0)" in found.stderr.partition("Root Cause")[2]


@pytest.mark.slow
def test_under_srun_both_processes_end_alike() -> None:
    (first, said), (second, other) = run_srun(*COMMAND)
    assert (first, second, other) == (0, 0, ""), said
    assert read_file(Path("dltune.json")).profiles[0].workload.nproc_per_node == 2
    (first, said), (second, other) = run_srun("-m", "autotune", "--dataset", "tests.misbehaving:no_such_factory")
    assert (first, second, other) == (2, 2, "")


@pytest.mark.parametrize(
    "environ",
    [{}, {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}, {"SLURM_JOB_ID": "7"}],
)
def test_a_process_that_was_started_alone_has_nobody_to_wait_for(environ: Mapping[str, str]) -> None:
    assert read_launch(environ) is None


def test_a_process_whose_leader_is_gone_waits_no_longer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    follower = Launch(1, 2, 2, {"SLURM_JOB_ID": "1"})
    follower._connect().set(LEADER, str(gone.pid))
    assert follower.wait() == 1


def test_srun_on_several_nodes_is_refused() -> None:
    with pytest.raises(UsageError, match="srun -N 1"):
        read_launch({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"})
