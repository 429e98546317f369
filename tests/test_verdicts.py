from __future__ import annotations

import pytest

from autotune.messages import Failed, TrialKind
from autotune.verdicts import Death, judge_failure, name_death

# What torch 2.13 was seen to say on a CPU-only Linux machine.
NO_SPACE = (
    "RuntimeError: unable to allocate shared memory(shm) for file </torch_71_204_0>: No space left on device (28)"
)
NO_INODE = (
    "RuntimeError: unable to open shared memory object </torch_7_1_2> in read-write mode: No space left on device (28)"
)
BUS_ERROR = (
    "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory. Please try to raise your shared memory limit."
)
NO_FILES = (
    "RuntimeError: Too many open files. Communication with the workers is no longer possible. Please increase the "
    "limit using `ulimit -n` in the shell or change the sharing strategy by calling "
    "`torch.multiprocessing.set_sharing_strategy('file_system')` at the beginning of your code"
)
NO_MEMORY = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)"
)
CAUGHT = "KeyError: Caught KeyError in DataLoader worker process 1.\nOriginal Traceback (most recent call last):\n"


def judge(error: str, details: str = "") -> Death:
    return judge_failure(Failed(where="trial", error=error, details=details))


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("shm_exhausted", NO_SPACE),
        ("shm_exhausted", NO_INODE),
        ("shm_exhausted", BUS_ERROR),
        ("too_many_files", NO_FILES),
        ("too_many_files", "OSError: [Errno 24] Too many open files"),
        ("too_many_files", "OSError: [Errno 24] Trop de fichiers ouverts"),
        ("out_of_memory", NO_MEMORY),
        ("out_of_memory", "MemoryError: "),
        ("out_of_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        ("out_of_memory", "torch.AcceleratorError: CUDA error: out of memory"),
        ("crashed", "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. "),
        ("crashed", "RuntimeError: DataLoader worker (pid 7) is killed by signal: Aborted. "),
        ("crashed", "RuntimeError: DataLoader worker (pid(s) 7, 8) exited unexpectedly"),
        (
            "crashed",
            "RuntimeError: DataLoader worker (pid 7) exited unexpectedly with exit code 3. Details are lost due to "
            "multiprocessing. Rerunning with num_workers=0 may give better error trace.",
        ),
        ("crashed", "ConnectionResetError: [Errno 104] Connection reset by peer"),
        ("workload_failed", CAUGHT + "KeyError: 'label'"),
        ("workload_failed", "RuntimeError: Caught BadError in DataLoader worker process 0."),
        ("workload_failed", "RuntimeError: stack expects each tensor to be equal size, but got [3] at entry 0"),
        ("workload_failed", "TypeError: default_collate: batch must contain tensors; found <class 'NoneType'>"),
        ("workload_failed", "RuntimeError: daemonic processes are not allowed to have children"),
        ("workload_failed", "FileNotFoundError: [Errno 2] No such file or directory"),
        ("workload_failed", "OSError: [Errno 28] No space left on device: '/scratch/cache'"),
    ],
)
def test_an_error_is_named_by_what_its_text_says(kind: TrialKind, error: str) -> None:
    assert judge(error).kind == kind


def test_a_tensor_that_cannot_be_opened_for_want_of_descriptors_is_no_want_of_shm() -> None:
    error = (
        "RuntimeError: unable to open shared memory object </torch_7_1_2> in read-write mode: Too many open files (24)"
    )
    assert judge(error).kind == "too_many_files"


def test_a_connection_that_the_users_own_dataset_lost_is_the_workloads_failure() -> None:
    error = "ConnectionResetError: Caught ConnectionResetError in DataLoader worker process 0.\nOriginal Traceback"
    assert judge(error).kind == "workload_failed"


def test_a_full_shm_is_recognised_without_the_number_of_the_error() -> None:
    assert judge(NO_SPACE.replace(" (28)", "").replace("No space left on device", "")).kind == "shm_exhausted"


def test_a_symptom_that_stands_only_in_the_traceback_counts() -> None:
    assert judge("RuntimeError: Caught RuntimeError in DataLoader worker process 0.", NO_SPACE).kind == "shm_exhausted"


@pytest.mark.parametrize(
    ("error", "advice"), [(NO_SPACE, "--shm-size"), (NO_FILES, "ulimit -n"), (NO_MEMORY, "--batch-size")]
)
def test_a_resource_that_ran_out_comes_with_the_next_step(error: str, advice: str) -> None:
    assert advice in judge(error).message


def test_an_error_of_the_users_code_is_quoted_by_its_last_line_and_keeps_its_traceback() -> None:
    death = judge(CAUGHT + "KeyError: 'label'\n", "the whole traceback")
    assert death.message == "raised KeyError: 'label'"
    assert death.details == "the whole traceback"


@pytest.mark.parametrize("error", ["", " \n\t\n"])
def test_an_error_without_words_is_still_put_into_a_sentence(error: str) -> None:
    assert judge(error).message == "raised an exception without a name"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-9, "SIGKILL (the kernel's out-of-memory killer does this)"),
        (-7, "killed by SIGBUS"),
        (-11, "killed by SIGSEGV"),
        (-62, "killed by signal 62"),
        (0, "exited with code 0 without a result"),
        (3, "exited with code 3 without a result"),
        (None, "closed its line"),
    ],
)
def test_a_silent_death_is_named_by_its_wait_status(status: int | None, words: str) -> None:
    death = name_death(status, "last words")
    assert death.kind == "crashed"
    assert words in death.message
    assert death.details == "last words"


@pytest.mark.parametrize(
    ("kind", "output"), [("shm_exhausted", NO_SPACE), ("too_many_files", NO_FILES), ("out_of_memory", NO_MEMORY)]
)
def test_a_silent_death_is_named_by_the_resource_its_output_complains_of(kind: TrialKind, output: str) -> None:
    assert name_death(-6, f"noise\n{output}\n").kind == kind


def test_a_lost_worker_in_the_output_does_not_hide_how_the_child_itself_died() -> None:
    death = name_death(-11, "ERROR: Unexpected segmentation fault encountered in worker.\x00\nConnectionResetError")
    assert "SIGSEGV" in death.message
