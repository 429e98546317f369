"""What stands below the options in the help of each command: examples to copy, and exit codes where they matter."""

from __future__ import annotations

from typing import Final


def _write(*examples: str, codes: str = "", more: str = "") -> str:
    """Write an epilog; a line of its own with a backspace keeps click from wrapping the paragraph below it."""
    paragraphs = ["\n".join(["\b", "Examples:", *(f"  {example}" for example in examples)])]
    paragraphs += [more] if more else []
    paragraphs += [f"Exit codes: {codes}."] if codes else []
    return "\n\n".join(paragraphs)


_TUNED: Final = "3 no configuration works; 130 interrupted, with the best so far written"
_READ: Final = "0 done; 1 the output cannot be written; 2 FILE cannot be read, or holds no such profile"

EPILOGS: Final = {
    "dltune": _write(
        "dltune --dataset data.images:make_dataset --step train:make_step --batch-size 64",
        "dltune show",
        "dltune check || dltune retune          # in a job, before it trains",
        "dltune export --to hf -o loader.yaml",
        "dltune report",
        "dltune doctor --data /data/images",
        more="\b\nIn training code:\n  DataLoader(dataset, **autotune.load('dltune.json').loader_kwargs())",
    ),
    "tune": _write(
        "dltune --dataset data.images:make_dataset --trials 40",
        "dltune --dataset data.images:make_dataset --step train:make_step --batch-size 64",
        "dltune --dataset data.images:make_dataset --dataset-arg root=/data --fix in_order=true",
        "dltune --dataset data.images:make_dataset --step-time 35ms --max-shm 64MB --timeout 10m",
        "dltune --dataset data.images:make_dataset --range num_workers=0:16 --dry-run",
        more="Options are also read from DLTUNE_* variables (DLTUNE_TRIALS=20) and from [tool.dltune] in "
        "pyproject.toml; a flag wins over the environment, the environment over the file.",
        codes=f"0 done; 1 failed; 2 usage or an error in your code; {_TUNED}",
    ),
    "retune": _write(
        "dltune retune",
        "dltune retune tuned/dltune.json --profile h100x1-12c-64g-a41f",
        "dltune check --max-age 30d || dltune retune --trials 20 --quiet",
        codes=f"0 done; 1 failed; 2 FILE cannot be read, or an error in your code; {_TUNED}",
    ),
    "show": _write(
        "dltune show",
        "dltune show tuned/dltune.json --profile h100x1-12c-64g-a41f",
        "dltune show --json",
        codes="0 done; 2 FILE cannot be read, or holds no such profile",
    ),
    "export": _write(
        "dltune export --to kwargs",
        "dltune export --to hf -o loader.yaml",
        "dltune export tuned/dltune.json --to env --profile h100x1-12c-64g-a41f -o loader.env --force",
        "python train.py $(dltune export --to timm)",
        codes=_READ,
    ),
    "report": _write(
        "dltune report",
        "dltune report tuned/dltune.json -o tuning.html",
        "dltune report --format md >> summary.md",
        codes=_READ,
    ),
    "check": _write(
        "dltune check || dltune retune          # in a job, before it trains",
        "dltune check --no-workload             # half a second: the machine and the versions alone",
        "dltune check --quick --max-age 30d",
        "dltune check tuned/dltune.json --json",
        codes="0 it fits; 1 it should be tuned anew, and why; 2 error, which is no reason to tune",
    ),
    "compare": _write(
        "dltune compare before.json after.json",
        "dltune compare dltune.json:cpu-4c-16g-1f0e dltune.json:cpu-8c-32g-77b2 --json",
        codes="0 compared, whatever differs; 2 a result cannot be read",
    ),
    "doctor": _write(
        "dltune doctor",
        "dltune doctor --data /data/images",
        "dltune doctor --json",
        codes="0 tuning can start, warnings or not; 1 a problem makes it impossible; 2 there is no such PATH",
    ),
    "completion": _write(
        'eval "$(dltune completion bash)"       # in ~/.bashrc',
        'eval "$(dltune completion zsh)"        # in ~/.zshrc',
        "dltune completion fish > ~/.config/fish/completions/dltune.fish",
    ),
    "schema": _write(
        "dltune schema > dltune.schema.json",
    ),
}
