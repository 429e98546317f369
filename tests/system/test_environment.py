from __future__ import annotations

from autotune.system.environment import read_thread_variables


def test_variables_are_read_that_decide_about_threads_and_no_others() -> None:
    environ = {"OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false", "HOME": "/root"}
    assert read_thread_variables(environ) == {"OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"}
