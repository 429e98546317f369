"""What is remembered of a trial's processes while it is watched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from autotune.runner.memory_cgroup import MemoryCgroup
from autotune.runner.resources import UsageMonitor
from tests.builders import make_limits, write_files


def make_group(folder: Path, *pids: int) -> MemoryCgroup:
    text = "".join(f"{pid}\n" for pid in pids)
    return MemoryCgroup(write_files(folder, {"cgroup.procs": text, "memory.stat": "anon 4096\nshmem 0\n"}))


def test_workers_that_died_are_remembered_where_a_cgroup_saves_the_walk_over_the_tree(tmp_path: Path) -> None:
    group = make_group(tmp_path, 111, 222, 0)  # one that the kernel has no number for here
    gauge = UsageMonitor(os.getpid(), make_limits(), group, own_shm=False)
    gauge.read()
    make_group(tmp_path, 111)  # one of them dies
    gauge.read()
    assert gauge.seen == {111, 222}


def test_without_a_cgroup_they_are_remembered_from_the_tree() -> None:
    code = "import time; print(flush=True); time.sleep(3600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        gauge = UsageMonitor(os.getpid(), make_limits(), None, own_shm=False)
        gauge.read()
        worker.kill()
    gauge.read()
    assert worker.pid in gauge.seen
