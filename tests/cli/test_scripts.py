"""`dltune train.py` and `dltune init`, as they are typed; and scripts that are named by their paths."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autotune.cli.main import cli
from tests.builders import write_files

ROOT = str(Path(__file__).parents[2])
pytestmark = pytest.mark.usefixtures("workdir")
NUMBERS = (
    "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\nnumbers = TensorDataset(torch.arange(64))\n"
)
AT_TOP = NUMBERS + "train_loader = DataLoader(numbers, batch_size=8)\n"
GUARD = 'if __name__ == "__main__":\n    raise SystemExit("this would train")\n'
IN_MAIN = (
    "import argparse\nimport torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
    "def main():\n    parser = argparse.ArgumentParser()\n    parser.add_argument('size', type=int)\n"
    "    args = parser.parse_args()\n    loader = DataLoader(TensorDataset(torch.arange(args.size)), batch_size=4)\n"
    "    for batch in loader: pass\nif __name__ == '__main__':\n    main()\n"
)
BRIEFLY = ("--trials", "0", "--max-workers", "1", "--timeout", "100s", "--isolation", "none", "-q")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="dltune")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "autotune", *arguments]
    environment = os.environ | {"PYTHONPATH": ROOT}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=200)


@pytest.mark.slow
def test_a_loader_at_the_top_of_a_script_is_tuned_without_a_file(workdir: Path) -> None:
    write_files(workdir, {"scripts/train.py": "import beside\n" + AT_TOP + GUARD, "scripts/beside.py": ""})
    found = run("scripts/train.py", *BRIEFLY)
    assert found.returncode == 0, found.stderr
    assert "Tuning scripts/train.py:train_loader, the loader of line 5 (train_loader)." in found.stderr
    assert not Path("scripts/dltune_workload.py").exists()
    assert '"scripts/train.py:train_loader"' in Path("dltune.json").read_text()


def test_a_loader_in_a_function_is_written_into_a_file_that_is_then_tuned(workdir: Path) -> None:
    write_files(workdir, {"train.py": IN_MAIN})
    shown = invoke("train.py")
    assert shown.exit_code == 2
    assert "dltune --dataset dltune_workload:make_loader --dataset-arg size=..." in shown.stdout
    refused = run("--dataset", "dltune_workload:make_loader", *BRIEFLY)
    assert "dltune_workload:make_loader must be given size: --dataset-arg size=..." in refused.stderr
    found = run("--dataset", "dltune_workload:make_loader", "--dataset-arg", "size=64", *BRIEFLY)
    assert found.returncode == 0, found.stderr


def test_init_writes_beside_the_script_and_names_the_file_by_its_path(workdir: Path) -> None:
    write_files(workdir, {"sub/train.py": IN_MAIN})
    shown = invoke("init", "sub/train.py")
    assert shown.exit_code == 0
    assert "dltune --dataset sub/dltune_workload.py:make_loader" in shown.stdout
    assert Path("sub/dltune_workload.py").exists()


def test_init_replaces_no_file_that_is_another_one(workdir: Path) -> None:
    write_files(workdir, {"train.py": IN_MAIN, "dltune_workload.py": "mine = 1\n"})
    refused = invoke("init", "train.py")
    assert refused.exit_code == 2
    assert "dltune init train.py --force" in refused.stderr
    assert invoke("init", "train.py", "--force").exit_code == 0
    assert invoke("init", "train.py").exit_code == 0


def test_init_says_where_no_file_is_needed(workdir: Path) -> None:
    write_files(workdir, {"train.py": AT_TOP + GUARD})
    shown = invoke("init", "train.py")
    assert shown.exit_code == 0
    assert "No file is needed for line 4 (train_loader): dltune train.py:train_loader" in shown.stdout


def test_several_loaders_are_listed_with_their_lines(workdir: Path) -> None:
    write_files(workdir, {"train.py": NUMBERS + "a = DataLoader(numbers)\nb = DataLoader(numbers)\n"})
    shown = invoke("train.py")
    assert shown.exit_code == 2
    assert "makes several DataLoaders: line 4 (a), line 5 (b). Choose one with --line." in shown.stderr


def test_a_function_that_returns_the_loader_is_named_with_what_it_must_be_given(workdir: Path) -> None:
    text = (
        NUMBERS
        + "def get_loaders(root, size=3):\n    train = DataLoader(numbers)\n    return train, DataLoader(numbers)\n"
    )
    write_files(workdir, {"train.py": text})
    shown = invoke("train.py", "--line", "5")
    assert "root must be given: dltune train.py:get_loaders --dataset-arg root=... --split 0" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train.py", "--dataset", "pkg:make"), "train.py and --dataset exclude each other"),
        (("--line", "3", "--dataset", "pkg:make"), "--line says where a script makes its loader"),
        (("nowhere.py",), "nowhere.py: no such file"),
        (("train.ipynb",), "is a notebook"),
        (("init", "broken.py"), "broken.py, line 1: no Python of this version"),
        (("--dataset", "fits.py:loader"), "importing it would run line 5 (trainer.fit(loader)). dltune init fits.py"),
        (("--dataset", "reads.py:train_loader"), "importing it would read the command line (line 5: "),
        (("--dataset", "guarded.py:loader"), 'It is made under if __name__ == "__main__" (line 5), which importing'),
        (("--dataset", "within.py:loader"), "It is made in the function main (line 8), which importing"),
        (("--step", "train.py:step", "--dataset", "train.py:train_loader"), "importing train.py makes no step"),
    ],
)
def test_what_stands_in_the_way_is_said_in_a_sentence_before_anything_starts(
    arguments: tuple[str, ...], words: str, workdir: Path
) -> None:
    files = {
        "train.py": AT_TOP + GUARD,
        "broken.py": "print 'hello'\n",
        "fits.py": NUMBERS + "loader = DataLoader(numbers)\ntrainer.fit(loader)\n",
        "reads.py": AT_TOP + "args = parser.parse_args()\n",
        "guarded.py": NUMBERS + 'if __name__ == "__main__":\n    loader = DataLoader(numbers)\n',
        "within.py": IN_MAIN,
    }
    write_files(workdir, files)
    shown = invoke(*arguments)
    assert shown.exit_code == 2
    assert words in shown.stderr
    assert "Traceback" not in shown.stderr


FIRST_HOUR = {
    "needy.py": NUMBERS + "def make(root, *, size): return numbers\n",
    "lacking.py": "import dltune_no_such_package\nloader = 1\n",
    "pkg/part.py": "from .beside import numbers\n",
    "pkg/beside.py": NUMBERS,
    "deep/below/dltune_hidden.py": NUMBERS,
    "fetches.py": "import urllib.error\ndef make(): raise urllib.error.URLError('Name or service not known')\n",
    "on_device.py": "def make(): raise RuntimeError('Found no NVIDIA driver on your system.')\n",
    "guarded.py": NUMBERS + 'if __name__ == "__main__":\n    loader = DataLoader(numbers)\n',
}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("needy:make",), "must be given root and size: --dataset-arg root=... --dataset-arg size=..."),
        (("needy:make", "--dataset-arg", "rot=1"), "takes no such argument. Is root meant?"),
        (("lacking.py:loader",), "-m pip install dltune_no_such_package"),
        (("pkg/part.py:numbers",), "named with it, from the folder above"),
        (("dltune_hidden:numbers",), "name it by its path, deep/below/dltune_hidden.py:numbers"),
        (("fetches:make",), "fetch it once beforehand"),
        (("on_device:make",), "asks for CUDA, which is not here"),
        (("guarded:loader",), "dltune init guarded.py writes what makes the loader"),
    ],
)
def test_an_error_of_the_first_hour_names_the_next_step(arguments: tuple[str, ...], words: str, workdir: Path) -> None:
    write_files(workdir, FIRST_HOUR)
    found = run("--dataset", *arguments, *BRIEFLY)
    assert found.returncode == 2
    assert words in found.stderr
