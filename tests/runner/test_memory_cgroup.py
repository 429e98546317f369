from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.runner.memory_cgroup import MemoryCgroup, find_cgroup_parent, remove_stale
from autotune.system.cgroups import count_oom_kills, read_memory_use
from tests.builders import MIB, write_files

PARENT = find_cgroup_parent()
needs_cgroup = pytest.mark.skipif(PARENT is None, reason="no memory cgroup that this user may write")


@pytest.fixture
def group() -> Iterator[MemoryCgroup]:
    assert PARENT is not None
    made = MemoryCgroup.make(PARENT, 64 * MIB)
    yield made
    made.remove()


def start_inside(group: MemoryCgroup, code: str) -> subprocess.Popen[str]:
    program = f"open({str(group.folder / 'cgroup.procs')!r}, 'w').write('0')\n{code}"
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


@needs_cgroup
def test_a_group_tells_what_its_processes_use(group: MemoryCgroup) -> None:
    process = start_inside(group, f"kept = b'x' * {32 * MIB}; print('ready', flush=True); import time; time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert 32 * MIB <= read_memory_use(group.folder) <= 60 * MIB
    process.kill()
    process.wait()
    process.stdout.close()


@needs_cgroup
def test_the_kernel_ends_who_passes_the_limit_and_counts_it(group: MemoryCgroup) -> None:
    process = start_inside(group, f"kept = b'x' * {128 * MIB}")
    assert process.wait(timeout=30) == -9
    assert process.stdout is not None
    process.stdout.close()
    assert count_oom_kills(group.folder) >= 1


@needs_cgroup
def test_removing_a_group_ends_what_runs_in_it(group: MemoryCgroup) -> None:
    process = start_inside(group, "print('ready', flush=True); import time; time.sleep(60)")
    assert process.stdout is not None
    process.stdout.readline()
    assert group.remove()
    assert process.wait(timeout=10) == -9
    process.stdout.close()
    assert not group.folder.exists()


@needs_cgroup
def test_groups_of_dead_runs_are_swept_and_those_of_living_ones_are_not(group: MemoryCgroup) -> None:
    assert PARENT is not None
    finished = subprocess.Popen([sys.executable, "-c", ""])
    finished.wait()
    dead = PARENT / f"dltune-{finished.pid}-{uuid.uuid4().hex[:8]}"
    dead.mkdir()
    remove_stale(PARENT)
    assert not dead.exists()
    assert group.folder.exists()


def make_v2(root: Path, **files: str) -> tuple[Path, Path]:
    """Lay out our group /job/task of cgroup version 2, writable, with some of its files."""
    usual = {
        "cgroup/job/cgroup.subtree_control": "cpu memory\n",
        "cgroup/job/cgroup.procs": "",
        "cgroup/job/task/cgroup.procs": "",
        "cgroup/job/task/cpu.max": "max 100000\n",
        "cgroup/job/task/memory.max": "max\n",
        "proc/self/cgroup": "0::/job/task\n",
    }
    write_files(root, usual | {f"cgroup/job/task/{name.replace('_', '.', 1)}": text for name, text in files.items()})
    return root / "proc", root / "cgroup"


def test_in_version_2_a_trial_lies_beside_us_where_our_group_limits_nothing(tmp_path: Path) -> None:
    assert find_cgroup_parent(*make_v2(tmp_path)) == tmp_path / "cgroup/job"


@pytest.mark.parametrize("limit", [{"cpu_max": "50000 100000\n"}, {"memory_max": "1073741824\n"}])
def test_a_trial_never_leaves_a_group_that_limits_it(tmp_path: Path, limit: dict[str, str]) -> None:
    assert find_cgroup_parent(*make_v2(tmp_path, **limit)) is None


def test_in_version_1_a_trial_lies_below_us(tmp_path: Path) -> None:
    files = {
        "cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
        "cgroup/memory/job/cgroup.procs": "",
        "proc/self/cgroup": "4:memory:/job\n",
    }
    write_files(tmp_path, files)
    assert find_cgroup_parent(tmp_path / "proc", tmp_path / "cgroup") == tmp_path / "cgroup/memory/job"


def test_without_cgroups_there_is_no_place(tmp_path: Path) -> None:
    assert find_cgroup_parent(tmp_path, tmp_path) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [("memory.events", "low 0\noom 3\noom_kill 2\n"), ("memory.oom_control", "under_oom 0\noom_kill 2\n")],
)
def test_oom_kills_are_read_from_either_version(tmp_path: Path, name: str, text: str) -> None:
    write_files(tmp_path, {name: text})
    assert count_oom_kills(tmp_path) == 2


def test_either_version_counts_anonymous_and_shared_memory(tmp_path: Path) -> None:
    v1 = "cache 9\nrss 1\ntotal_cache 90\ntotal_rss 10\ntotal_shmem 5\n"
    for text in (v1, "anon 10\nfile 90\nshmem 5\n"):
        write_files(tmp_path, {"memory.stat": text})
        assert read_memory_use(tmp_path) == 15


def test_a_group_that_is_gone_reads_as_empty(tmp_path: Path) -> None:
    group = MemoryCgroup(tmp_path / "gone")
    assert (read_memory_use(group.folder), group.list_processes(), group.remove()) == (0, [], True)
