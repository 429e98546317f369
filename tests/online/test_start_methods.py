"""Workers that are not forked: they are added if the script can be imported again, and the training goes on anyway."""

from __future__ import annotations

import py_compile
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest

pytestmark = pytest.mark.slow

HEAD = """
    import time
    import torch
    from torch.utils.data import DataLoader, Dataset
    from autotune.online.attach import autopilot

    SCALE = 1
    STARTED = time.time()

    class Waiting(Dataset):
        def __len__(self):
            return 10 ** 6

        def __getitem__(self, index):
            time.sleep(0.02)
            return index * (SCALE > 0)
"""
TRAINING = """
    {method}
    print("training begins")
    loader = autopilot(DataLoader(Waiting(), batch_size=4, {options}), None, max_workers=2)
    began = time.monotonic()
    for position, batch in enumerate(loader):
        assert batch.tolist() == list(range(4 * position, 4 * position + 4))
        state = getattr(loader, "autopilot_state", None)
        if state is None and position == 20 or state is not None and state.controller.has_converged:
            break
    print(0 if state is None else state.controller.settings.workers)
"""
GUARD = 'if __name__ == "__main__":\n'


def run(
    folder: Path, method: str, options: str = "", *, guarded: bool = True, compiled: bool = False
) -> tuple[str, str]:
    """Return what a training script has printed on stdout and stderr."""
    training = dedent(TRAINING.format(method=method, options=options))
    if guarded:
        training = GUARD + indent(training, "    ")
    (folder / "train.py").write_text(dedent(HEAD) + training)
    if compiled:
        py_compile.compile(str(folder / "train.py"), cfile=str(folder / "train.pyc"))
    script = "train.pyc" if compiled else "train.py"
    ended = subprocess.run(
        [sys.executable, script], cwd=folder, capture_output=True, text=True, timeout=180, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, ended.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_are_added_with(method: str, tmp_path: Path) -> None:
    output, _ = run(tmp_path, f"torch.multiprocessing.set_start_method({method!r})")
    assert output.split("\n")[0] == "training begins"
    assert output.split("\n")[1] in "12"


def test_workers_are_added_with_the_context_of_the_loader(tmp_path: Path) -> None:
    output, _ = run(tmp_path, "", "num_workers=1, multiprocessing_context='spawn'")
    assert output == "training begins\n2\n"


@pytest.mark.parametrize(("method", "compiled"), [("spawn", False), ("forkserver", False), ("spawn", True)])
def test_a_script_that_would_run_again_in_each_worker_keeps_its_settings(
    method: str, compiled: bool, tmp_path: Path
) -> None:
    start = f"torch.multiprocessing.set_start_method({method!r})"
    output, errors = run(tmp_path, start, guarded=False, compiled=compiled)
    assert output == "training begins\n0\n"
    assert errors.startswith("dltune: not tuned: the start method of processes is not fork")


@pytest.mark.parametrize(
    ("change", "name"),
    [("SCALE = 10", "SCALE of train.py"), ("torch.set_default_dtype(torch.float64)", "torch's default dtype")],
)
def test_workers_that_do_not_see_what_the_training_has_changed_are_not_used(
    change: str, name: str, tmp_path: Path
) -> None:
    output, errors = run(tmp_path, f"torch.multiprocessing.set_start_method('spawn'); {change}")
    assert output == "training begins\n0\n"
    assert f"workers that are not forked have another {name} than the training" in errors


@pytest.mark.parametrize(
    "options", ["collate_fn=lambda samples: torch.tensor(samples)", "worker_init_fn=lambda one: 0"]
)
def test_what_cannot_be_pickled_does_not_end_the_training(options: str, tmp_path: Path) -> None:
    output, errors = run(tmp_path, "torch.multiprocessing.set_start_method('forkserver')", options)
    assert output == "training begins\n0\n"
    assert "pickle" in errors
    assert errors.count("dltune: ") == 1  # and a warning of torch
