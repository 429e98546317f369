"""Training scripts run unchanged, with the autopilot on their loaders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

SCRIPT = """
    import sys, time
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Waiting(Dataset):
        def __len__(self):
            return 3000

        def __getitem__(self, index):
            time.sleep(0.004)
            return index

    class Doubling(DataLoader):
        def __iter__(self):
            return (2 * batch for batch in super().__iter__())

    if __name__ == "__main__":
        loader = DataLoader(Waiting(), batch_size=8)
        assert [value for batch in loader for value in batch.tolist()] == list(range(3000))
        assert sum(sum(batch.tolist()) for batch in Doubling(range(4))) == 12
        print(sys.argv[1:], __name__)
"""


def run(tmp_path: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(dedent(code))
    program = "import sys; from autotune.online.script import run_script; from autotune.online.attach import Options; "
    program += "run_script(sys.argv[1], sys.argv[2:], Options())"
    command = [sys.executable, "-c", program, "train.py", *arguments]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)


def test_a_script_gets_its_arguments_and_batches_and_a_sentence_for_each_loader(tmp_path: Path) -> None:
    ended = run(tmp_path, SCRIPT, "--epochs", "3")
    assert (ended.returncode, ended.stdout) == (0, "['--epochs', '3'] __main__\n"), ended.stderr
    line = dedent(SCRIPT).splitlines().index("    loader = DataLoader(Waiting(), batch_size=8)") + 1
    assert f"loader of train.py:{line}: " in ended.stderr
    assert "stay: Doubling iterates in its own way." in ended.stderr


@pytest.mark.parametrize(
    ("code", "returncode", "words"),
    [
        ("raise SystemExit(7)", 7, "iterated over no DataLoader"),
        ("raise ValueError('bad learning rate')", 1, "ValueError: bad learning rate"),
    ],
)
def test_the_end_of_a_script_is_its_own(tmp_path: Path, code: str, returncode: int, words: str) -> None:
    ended = run(tmp_path, code)
    assert ended.returncode == returncode
    assert words in ended.stderr
