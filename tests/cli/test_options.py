"""The options of `dltune tune`: what they accept and reject, and the request that they make."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli import options
from autotune.cli.main import cli
from autotune.cli.tune import tune
from autotune.request import TuningRequest, ValueRange

WORDS = st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters=",:=\"'[]{}"), min_size=1)


def invoke(*arguments: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(cli, arguments, prog_name="dltune")


def build(*arguments: str) -> TuningRequest:
    return options.build_request(tune.make_context("dltune", ["--dataset", "pkg:make", *arguments]).params)


def test_options_make_one_request() -> None:
    request = build(
        *("--arg", "root=/data", "--arg", "size=3", "--split", "train"),
        *("--step-time", "35ms", "--batch-size", "32,64", "--set", "in_order=true", "--search", "num_workers=0:16"),
        *("--trials", "7", "--timeout", "10m", "--trial-time", "2s", "--stall-time", "5m", "--epochs", "3"),
        *("--seed", "5", "--sampler", "random", "--max-memory", "24GiB", "--max-shm", "50%"),
        *("--max-gpu-memory", "70%", "--max-workers", "12", "--device", "cpu", "-o", "x.json"),
        *("--profile", "mine", "--storage", "sqlite:///x.db", "--study-name", "s", "--fresh", "--nproc-per-node", "2"),
    )
    workload = request.workload
    assert (workload.dataset, workload.is_loader, workload.split) == ("pkg:make", False, "train")
    assert workload.dataset_args == {"root": "/data", "size": 3}
    assert workload.device == "cpu"
    assert workload.step_seconds == pytest.approx(0.035)
    assert workload.nproc_per_node == 2
    assert request.fixed == {"in_order": True}
    assert request.search == {"batch_size": (32, 64), "num_workers": ValueRange(low=0, high=16)}
    assert (request.trials, request.timeout_seconds, request.trial_seconds) == (7, 600, 2)
    assert (request.stall_seconds, request.epochs, request.seed, request.sampler) == (300, 3, 5, "random")
    assert (request.max_memory, request.max_shm, request.max_gpu_memory) == ("24GiB", "50%", "70%")
    assert (request.max_workers, request.output, request.profile) == (12, "x.json", "mine")
    assert (request.storage, request.study_name, request.fresh) == ("sqlite:///x.db", "s", True)


def test_the_defaults_of_the_options_are_those_of_the_request() -> None:
    assert build() == TuningRequest(workload={"dataset": "pkg:make"})


@pytest.mark.parametrize(
    ("arguments", "fixed", "search"),
    [
        (("--batch-size", "64"), {"batch_size": 64}, {}),
        (("--batch-size", "64, 128"), {}, {"batch_size": (64, 128)}),
        (("--search", "in_order=true,false"), {}, {"in_order": (True, False)}),
        (("--search", "worker_threads=null,1"), {}, {"worker_threads": (None, 1)}),
        (("--set", "multiprocessing_context=spawn", "--set", "in_order=true"), {"in_order": True}, {}),
    ],
)
def test_a_value_is_fixed_and_a_list_is_searched(
    arguments: tuple[str, ...], fixed: dict[str, Any], search: dict[str, Any]
) -> None:
    request = build(*arguments)
    assert (request.fixed, request.search) == (fixed, search)
    assert request.workload.start_method == ("spawn" if "multiprocessing_context=spawn" in arguments else None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--step-time", "fast"), "35ms"),
        (("--batch-size", "32,many"), "batch_size='many' is not possible"),
        (("--batch-size", "0"), "batch_size=0 is not possible"),
        (("--batch-size", "null"), "batch_size=null is not possible"),
        (("--set", "prefetch_factor=null"), "prefetch_factor=null is not possible"),
        (("--batch-size", "32", "--set", "batch_size=64"), "given twice"),
        (("--set", "in_order"), "KEY=VALUE"),
        (("--set", "colour=red"), "--set colour: no such setting. There are batch_size, num_workers, "),
        (("--set", "colour=red"), "worker_threads, multiprocessing_context."),
        (("--search", "multiprocessing_context=fork,spawn"), "--search multiprocessing_context: no such setting"),
        (("--step", "train.make_step"), "Is it train:make_step, or train.make_step:make_step?"),
        (("--step", "train"), "Is the attribute missing, as in train:make_step?"),
        (("--set", "sharing_strategy=pigeon"), "sharing_strategy='pigeon' is not possible"),
        (("--set", "multiprocessing_context=thread"), "--set multiprocessing_context: it must be 'fork'"),
        (("--set", "in_order=true", "--search", "in_order=true,false"), "in_order is both set and searched"),
        (("--search", "num_workers=1.5,2"), "it must be a valid integer"),
        (("--search", "num_workers=9:3"), "--search num_workers: the lower end 9 is above the upper end 3"),
        (("--search", "num_workers=-1:3"), "is not of the form num_workers=0:16"),
        (("--search", "num_workers=0-8"), "is not of the form num_workers=0:16"),
        (("--batch-size", "16..64"), "is not of the form num_workers=0:16"),
        (("--search", "num_workers=0:" + "9" * 5000), "a bound has more than 9 digits"),
        (("--batch-size", ",".join(map(str, range(1, 102)))), "batch_size: it must have at most 64 items, not 101"),
        (("--set", "in_order=" + "[" * 100_000), "is not possible"),
        (
            ("--arg", "names=[jpg,png]"),
            """'[jpg,png]' is not JSON: write 'sizes=["a", "b"]' with quotes for the shell""",
        ),
        (("--arg", "flip=False"), "true, false or null"),
        (("--nproc-per-node", "many"), "neither a number of processes nor auto"),
        (("--nproc-per-node", "0"), "--nproc-per-node: it must be greater than or equal to 1"),
        (("--trials", "0"), "--trials: it must be greater than or equal to 1"),
        (("--timeout", "1000000000000s"), "--timeout: it must be less than or equal to"),
        (("--step", "pkg:step", "--step-time", "5ms"), "exclude each other"),
        (("--profile", ""), "--profile: String should have at least 1 character"),
        (("--arg", "root"), "KEY=VALUE"),
        (("--arg", "x=NaN"), "--arg: the values must be representable in JSON"),
        (("--arg", "root=\udcff"), "representable in JSON"),
        (("--seed", "4294967296"), "--seed: it must be less than 4294967296"),
        (("--loader", "pkg:make_loader"), "either --dataset or --loader"),
    ],
)
def test_an_invalid_option_is_rejected_with_a_hint(arguments: tuple[str, ...], words: str) -> None:
    result = invoke("--dataset", "pkg:make", *arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", ["assignment", "search_values", "batch_sizes", "processes", "seconds"])
@given(st.text())
def test_any_text_is_parsed_or_rejected_by_a_usage_error(name: str, text: str) -> None:
    try:
        getattr(options, name)(text)
    except click.BadParameter:
        pass


@pytest.mark.parametrize("target", ["pkg.data:make", "data/train.py:make"])
def test_a_target_is_short_for_a_dataset(target: str) -> None:
    result = invoke(target, "--trials", "-1")  # rejected after the target was accepted
    assert "--trials: it must" in result.stderr


def test_a_target_excludes_a_dataset_on_the_command_line_only() -> None:
    assert "Pass either pkg:make or" in invoke("pkg:make", "--dataset", "pkg:other").stderr
    separated = invoke("--dataset", "pkg:make", "--batch-size", "16", "32").stderr
    assert "32 is no TARGET: separate values by commas, as in --batch-size 16,32." in separated
    assert "--trials: it must" in invoke("pkg:make", "--trials", "-1", DLTUNE_DATASET="pkg:other").stderr


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (["--loader", "pkg:make"], {"DLTUNE_DATASET": "pkg:other"}),
        (["--dataset", "pkg:make"], {"DLTUNE_LOADER": "pkg:other"}),
        (["pkg:make", "--step-time", "5ms"], {"DLTUNE_STEP": "pkg:step"}),
    ],
)
def test_an_option_takes_precedence_over_the_variable_of_its_alternative(
    arguments: list[str], variables: dict[str, str]
) -> None:
    assert "--trials: it must" in invoke(*arguments, "--trials", "-1", **variables).stderr


def test_a_script_alone_is_answered_with_the_form_that_works() -> None:
    result = invoke("train.py")
    assert result.exit_code == 2
    assert "Run dltune run train.py, or dltune --dataset train.py:NAME with NAME" in result.stderr


def test_a_dotted_name_alone_is_answered_with_the_forms_that_may_be_meant() -> None:
    assert "Is it data:make, or data.make:make_dataset?" in invoke("data.make").stderr


def test_nothing_to_tune_is_a_usage_error() -> None:
    result = invoke("--trials", "3")
    assert result.exit_code == 2
    assert "Nothing to tune" in result.stderr


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("DLTUNE_TRIALS", "7", "trials", 7),
        ("DLTUNE_ARG", "root=/data size=3", "arg", (("root", "/data"), ("size", 3))),
        ("DLTUNE_SEARCH", "num_workers=0:4", "search", (("num_workers", {"low": 0, "high": 4}),)),
        ("DLTUNE_FRESH", "1", "fresh", True),
    ],
)
def test_an_option_is_read_from_its_environment_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, name: str, value: object
) -> None:
    monkeypatch.setenv(variable, text)
    assert tune.make_context("dltune", []).params[name] == value
