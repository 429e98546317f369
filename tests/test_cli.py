"""The command line: what it accepts, refuses, prints where, and exits with."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import pytest
from autotune.cli.params import build_request
from autotune.cli.project_file import name_parameters, read_project_options
from click.testing import CliRunner, Result

from autotune.cli.main import cli
from autotune.cli.tune import tune
from autotune.config import ProcessSettings
from autotune.errors import UsageError
from autotune.profiles.store import save_profile
from tests.builders import make_config, make_profile, make_request

ROOT = str(Path(__file__).parent.parent)
CLICK = tuple(int(part) for part in version("click").split(".")[:2])
pytestmark = pytest.mark.usefixtures("workdir")


def invoke(*arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="dltune", **options)


def parse(*arguments: str) -> dict[str, Any]:
    return tune.make_context("dltune", ["--dataset", "pkg:make", *arguments]).params


def list_options(command: click.Command = tune) -> list[str]:
    return [max(parameter.opts, key=len) for parameter in command.params if isinstance(parameter, click.Option)]


def test_tune_is_implied_when_the_first_argument_is_an_option() -> None:
    shown = invoke("--dataset", "pkg:make", "--print-config")
    assert shown.exit_code == 0
    assert "pkg:make" in shown.stdout


def test_every_option_has_help() -> None:
    assert [option.name for option in tune.params if isinstance(option, click.Option) and not option.help] == []


def test_the_help_of_the_group_shows_commands_and_examples() -> None:
    text = invoke("--help").stdout
    assert all(word in text for word in ("tune", "show", "export", "schema", "Examples", "--dataset"))


@pytest.mark.skipif(CLICK < (8, 4), reason="click suggests commands, and options in these words, since 8.4")
@pytest.mark.parametrize(("typo", "meant"), [("shwo", "show"), ("--trails", "--trials"), ("--datset", "--dataset")])
def test_a_typo_is_answered_with_what_was_meant(typo: str, meant: str) -> None:
    result = invoke(typo, "3")
    assert result.exit_code == 2
    assert "Did you mean" in result.stderr
    assert meant in result.stderr


def test_a_start_method_may_be_fixed_by_the_name_that_dataloader_has_for_it() -> None:
    fixed = parse("--fix", "multiprocessing_context=spawn", "--fix", "in_order=true")
    request = build_request(fixed)
    assert (request.workload.start_method, request.fixed) == ("spawn", {"in_order": True})


def test_two_start_methods_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="--start-method fork and --fix multiprocessing_context=spawn"):
        build_request(parse("--fix", "multiprocessing_context=spawn", "--start-method", "fork"))


def test_a_missing_dataset_is_a_usage_error() -> None:
    result = invoke("--trials", "3")
    assert result.exit_code == 2
    assert "--dataset PKG.MOD:ATTR and --loader PKG.MOD:FN are both missing" in result.stderr


def test_a_dataset_and_a_loader_exclude_each_other() -> None:
    result = invoke("--dataset", "pkg:make", "--loader", "pkg:make_loader")
    assert result.exit_code == 2
    assert "exclude each other" in result.stderr


def test_a_loader_that_is_no_import_string_is_named_by_its_option() -> None:
    result = invoke("--loader", "make_loader")
    assert result.exit_code == 2
    assert "--loader make_loader: not of the form" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--step-time", "fast"), "35ms"),
        (("--batch-size", "32,many"), "32,64,128"),
        (("--batch-size", "0"), "at least one sample"),
        (("--max-memory", "120%"), "at most 100%"),
        (("--fix", "in_order"), "KEY=VALUE"),
        (("--fix", "colour=red"), "the knobs are batch_size"),
        (("--fix", "sharing_strategy=pigeon"), "the value does not suit it"),
        (("--range", "num_workers=9:3"), "num_workers=0:16"),
        (("--range", "num_workers=0:\u00b2"), "is not of the form num_workers=0:16"),
        (("--range", "num_workers=-1:3"), "below 0"),
        (("--knob", "threads"), "threads=0,1,2"),
        (("--knob", "threads=9:3"), "the lower end is not below the upper one"),
        (("--knob", "threads=a:3"), "is not of the form cache_size=64:4096"),
        (("--knob", "threads=-100:100"), "list the choices instead"),
        (("--knob", "threads=[[1],2]"), "the choices are numbers, words, true or false"),
        (("--knob", "threads=[1"), "is not of the form"),
        (("--knob", "threads=1,2", "--knob", "threads=3"), "--knob threads is given twice"),
        (("--knob", "threads=1,1"), "a choice is given twice"),
        (("--knob", "num_workers=1,2"), "narrow it with --range or --fix"),
        (("--knob", "a-b=1,2"), "not the name of an argument"),
        (("--knob", "root=1,2", "--dataset-arg", "root=/data"), "--dataset-arg gives it a value already"),
        (("--range", "num_workers=0:" + "9" * 5000), "is not of the form num_workers=0:16"),
        (("--fix", "in_order=" + "[" * 100_000), "nested too deeply"),
        (("--dataset-arg", "x=" + "[" * 100_000), "nested too deeply"),
        (("--trials", "-1"), "x>=0"),
        (("--step", "pkg:step", "--step-time", "5ms"), "exclude each other"),
        (("--dataset-arg", "root"), "KEY=VALUE"),
        (("--sampler", "magic"), "tpe"),
        (("--seed", "-1"), "greater than or equal to 0"),
        (("--seed", "4294967296"), "less than 4294967296"),
        (("--epochs", "1" + "0" * 400), "less than or equal to"),
        (("--max-workers", "1000000"), "less than or equal to 4096"),
        (("--batch-size", "99999999999"), "less than or equal to"),
        (("--trial-time", "1000000000000s"), "less than or equal to"),
        (("--dataset-arg", "x=NaN"), "what JSON can say"),
        (("--dataset-arg", "root=\udcff"), "what JSON can say"),
        (("--study-name", "\udcff"), "is not UTF-8"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_hint(arguments: tuple[str, ...], words: str) -> None:
    result = invoke("--dataset", "pkg:make", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_options_become_one_request() -> None:
    request = build_request(
        parse(
            *("--dataset-arg", "root=/data", "--dataset-arg", "size=3", "--split", "train", "--collate", "pkg:collate"),
            *("--step-time", "35ms", "--batch-size", "32,64", "--fix", "in_order=true", "--range", "num_workers=0:16"),
            *("--trials", "7", "--timeout", "10m", "--trial-time", "2s", "--stall-time", "5m", "--epochs", "3"),
            *("--seed", "5", "--sampler", "random", "--max-memory", "24GiB", "--max-shm", "50%"),
            *("--max-gpu-memory", "70%", "--max-workers", "12", "--device", "cpu", "-o", "x.json"),
            *("--profile", "mine", "--storage", "sqlite:///x.db", "--study-name", "s", "--no-resume"),
        )
    )
    assert request.workload.dataset_args == {"root": "/data", "size": 3}
    assert request.workload.split == "train"
    assert request.workload.collate == "pkg:collate"
    assert request.workload.step_seconds == pytest.approx(0.035)
    assert request.workload.device == "cpu"
    assert request.batch_sizes == (32, 64)
    assert request.fixed == {"in_order": True}
    assert request.ranges == {"num_workers": (0, 16)}
    assert (request.trials, request.timeout_seconds, request.trial_seconds) == (7, 600, 2)
    assert (request.stall_seconds, request.epochs, request.seed, request.sampler) == (300, 3, 5, "random")
    assert (request.max_memory, request.max_shm, request.max_gpu_memory) == ("24GiB", "50%", "70%")
    assert (request.max_workers, request.output, request.profile) == (12, "x.json", "mine")
    assert (request.storage, request.study_name, request.resume) == ("sqlite:///x.db", "s", False)


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("threads=0,1,2", (0, 1, 2)),
        ("threads=4,1", (1, 4)),
        ("threads=2:6", (2, 3, 4, 5, 6)),
        ("threads=64:1000", (64, 128, 256, 512, 1000)),
        ("threads=0:40", (0, 1, 2, 4, 8, 16, 32, 40)),
        ("threads=0:1.0", (0.0, 0.25, 0.5, 0.75, 1.0)),
        ("threads=pil,cv2", ("pil", "cv2")),
        ("threads=false,true", (False, True)),
        ('threads=["a,b", "c:d"]', ("a,b", "c:d")),
        ("threads=8", (8,)),
    ],
)
def test_the_choices_of_a_users_knob_are_listed_or_spread_over_a_range(text: str, choices: tuple[Any, ...]) -> None:
    request = build_request(tune.make_context("dltune", ["--dataset", "pkg:make", "--knob", text]).params)
    read = request.workload.knobs["threads"]
    assert read == choices
    assert list(map(type, read)) == list(map(type, choices))


def test_the_choices_of_users_knobs_may_stand_in_the_project_file(workdir: Path) -> None:
    table = 'knob = {threads = [0, 1], cache = "64:256", decoder = ["pil", "cv2"]}'
    (workdir / "pyproject.toml").write_text(f"[tool.dltune]\n{table}\n")
    defaults = name_parameters(read_project_options(workdir), tune)
    context = tune.make_context("dltune", ["--dataset", "pkg:make"], default_map=defaults)
    knobs = build_request(context.params).workload.knobs
    assert knobs == {"threads": (0, 1), "cache": (64, 128, 256), "decoder": ("pil", "cv2")}


def test_a_flag_wins_over_the_environment_and_the_environment_over_the_file(workdir: Path) -> None:
    (workdir / "pyproject.toml").write_text(
        "[tool.dltune]\nseed = 1\ntrials = 1\nepochs = 1\nfix = {in_order = true}\nrange = {num_workers = [0, 4]}\n"
    )
    defaults = {"tune": name_parameters(read_project_options(workdir), tune)}
    environment = {"DLTUNE_TRIALS": "2", "DLTUNE_EPOCHS": "2"}
    arguments = ("--dataset", "pkg:make", "--epochs", "3", "--print-config")
    lines = invoke(*arguments, env=environment, default_map=defaults).stdout.splitlines()
    shown = {line.split()[0]: line.split()[1:] for line in lines}
    assert shown["--seed"] == ["1", "pyproject.toml"]
    assert shown["--trials"] == ["2", "environment"]
    assert shown["--epochs"] == ["3", "flag"]
    assert shown["--sampler"] == ['"model"', "default"]
    assert shown["--fix"][-1] == "pyproject.toml"
    assert shown["--range"] == ['[["num_workers",', "[0,", "4]]]", "pyproject.toml"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"tool = 5", "must be a table of options"),
        (b"[tool]\ndltune = 5", "must be a table of options"),
        (b"[tool", "is not valid TOML"),
        (b"\xff\xfe", "is not valid TOML"),
        (b"a = " + b"[" * 5000, "is not valid TOML"),
    ],
)
def test_a_project_file_that_is_something_else_is_refused(workdir: Path, text: bytes, words: str) -> None:
    (workdir / "pyproject.toml").write_bytes(text)
    with pytest.raises(click.UsageError, match=words):
        read_project_options(workdir)


def test_an_unknown_option_in_the_project_file_is_answered_with_what_was_meant() -> None:
    with pytest.raises(click.UsageError, match=r"no such option 'trial_tim'. Did you mean 'trial_time'"):
        name_parameters({"trial_tim": "1s"}, tune)


@pytest.mark.parametrize(
    ("variable", "text", "option"),
    [
        ("DLTUNE_DATASET_ARG", "root=/data", "--dataset-arg"),
        ("DLTUNE_RANGE", "num_workers=0:4", "--range"),
        ("DLTUNE_BATCH_SIZE", "64", "--batch-size"),
    ],
)
def test_an_option_is_read_from_the_variable_of_its_name(variable: str, text: str, option: str) -> None:
    lines = invoke("--dataset", "pkg:make", "--print-config", env={variable: text}).stdout.splitlines()
    assert next(line.split()[-1] for line in lines if line.startswith(option)) == "environment"


def test_a_broken_project_file_is_a_usage_error(workdir: Path) -> None:
    (workdir / "pyproject.toml").write_text("[tool.dltune\n")
    with pytest.raises(click.UsageError, match="not valid TOML"):
        read_project_options(workdir)


def test_show_describes_a_saved_profile(workdir: Path) -> None:
    profile = make_profile()
    save_profile(workdir / "dltune.json", profile)
    text = invoke("show", "dltune.json").stdout
    assert profile.name in text
    assert f"num_workers={profile.dataloader.num_workers}" in text


def test_show_gives_the_profile_as_json(workdir: Path) -> None:
    save_profile(workdir / "dltune.json", make_profile())
    document = json.loads(invoke("show", "dltune.json", "--json").stdout)
    assert document["profiles"][0]["name"] == make_profile().name


@pytest.mark.parametrize(("text", "words"), [(None, "cannot be read"), ("{", "not a tuned file")])
def test_show_says_what_is_wrong_with_a_file(workdir: Path, text: str | None, words: str) -> None:
    if text is not None:
        (workdir / "dltune.json").write_text(text)
    result = invoke("show")
    assert result.exit_code == 2
    assert words in result.stderr


def test_what_a_file_says_does_not_command_the_terminal(workdir: Path) -> None:
    save_profile(workdir / "dltune.json", make_profile("\x1b]0;owned\x07"))
    shown = invoke("show")
    assert "\\u001b]0;owned\\u0007" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert "\x1b" not in invoke("show", "--profile", "\x1b[2J").stderr


def test_json_stays_json_whatever_the_names_in_it_hold(workdir: Path) -> None:
    name = "\x1b\x7f\x85é\U000e0001"
    save_profile(workdir / "dltune.json", make_profile(name))
    assert json.loads(invoke("show", "--json").stdout)["profiles"][0]["name"] == name


def test_a_terminal_of_few_characters_is_shown_the_rest_by_number(workdir: Path) -> None:
    save_profile(workdir / "dltune.json", make_profile("é"))
    command = [sys.executable, "-m", "autotune.cli", "show"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": ROOT}
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "\\u00e9   pkg.data:make_dataset" in shown.stdout


def test_show_of_an_unknown_profile_lists_the_known_ones(workdir: Path) -> None:
    save_profile(workdir / "dltune.json", make_profile())
    result = invoke("show", "--profile", "other")
    assert result.exit_code == 2
    assert make_profile().name in result.stderr


def test_an_export_goes_to_stdout_and_what_is_not_held_to_stderr(workdir: Path) -> None:
    save_profile(workdir / "dltune.json", make_profile(process=ProcessSettings(sharing_strategy="file_system")))
    result = invoke("export", "--to", "kwargs")
    assert result.exit_code == 0
    assert ast.literal_eval(result.stdout) == make_profile().config.loader_kwargs()
    assert "sharing_strategy='file_system' is not held: call torch.multiprocessing.set_sharing" in result.stderr
    assert "batch_size is per process" in result.stderr


def test_flags_come_alone_so_that_a_shell_can_put_them_into_a_command(workdir: Path) -> None:
    save_profile(workdir / "dltune.json", make_profile())
    assert invoke("export", "dltune.json", "--to", "timm").stdout == "--batch-size 64 --workers 4\n"


def test_an_export_is_written_to_a_file_that_is_replaced_only_by_force(workdir: Path) -> None:
    save_profile(workdir / "dltune.json", make_profile())
    first = invoke("export", "--to", "env", "-o", "loader.env")
    assert (first.stdout, first.exit_code) == ("", 0)
    written = (workdir / "loader.env").read_text()
    assert "DATALOADER_NUM_WORKERS=4" in written
    refused = invoke("export", "--to", "yaml", "-o", "loader.env")
    assert refused.exit_code == 1
    assert "loader.env is there already. Give --force to replace it." in refused.stderr
    assert (workdir / "loader.env").read_text() == written
    assert invoke("export", "--to", "yaml", "-o", "loader.env", "--force").exit_code == 0
    assert "num_workers: 4" in (workdir / "loader.env").read_text()


@pytest.mark.parametrize("path", ["dltune.json", "./dltune.json"])
def test_an_export_never_replaces_the_tuned_file_itself(workdir: Path, path: str) -> None:
    save_profile(workdir / "dltune.json", make_profile())
    before = (workdir / "dltune.json").read_text()
    result = invoke("export", "--to", "json", "-o", path, "--force")
    assert result.exit_code == 1
    assert "is the tuned file itself" in result.stderr
    assert (workdir / "dltune.json").read_text() == before


def test_an_export_into_a_folder_that_is_not_there_says_so(workdir: Path) -> None:
    save_profile(workdir / "dltune.json", make_profile())
    result = invoke("export", "--to", "yaml", "-o", "nowhere/loader.yaml")
    assert result.exit_code == 1
    assert "nowhere/loader.yaml cannot be written: No such file or directory." in result.stderr


def test_what_a_target_guarantees_is_given_up_only_by_force(workdir: Path) -> None:
    loader = make_config(2, 2, 8, in_order=False).dataloader
    save_profile(workdir / "dltune.json", make_profile(dataloader=loader))
    refused = invoke("export", "--to", "statefuldataloader")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--force" in refused.stderr
    assert '"in_order": False' in invoke("export", "--to", "statefuldataloader", "--force").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "Missing option '--to'"),
        (("--to", "pickle"), 2, "'kwargs', 'statefuldataloader'"),
        (("--to", "yaml", "--profile", "other"), 2, "it holds cpu-4c-test"),
    ],
)
def test_what_cannot_be_exported_is_refused_with_what_can(
    workdir: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    save_profile(workdir / "dltune.json", make_profile())
    result = invoke("export", "dltune.json", *arguments)
    assert result.exit_code == code
    assert words in result.stderr


def test_the_schema_is_a_json_schema_that_accepts_a_saved_file(workdir: Path) -> None:
    save_profile(workdir / "dltune.json", make_profile())
    schema = json.loads(invoke("schema").stdout)
    document = json.loads((workdir / "dltune.json").read_text())
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert set(document) == set(schema["properties"])
    assert schema["$defs"]["Hardware"]["properties"]["gpu"]["description"].startswith("Name of the accelerator")


def test_help_imports_nothing_heavy() -> None:
    heavy = ("torch", "optuna", "pydantic", "rich")
    code = f"import sys; import autotune.cli; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_the_folder_is_the_current_one_and_stands_nowhere_in_the_request(workdir: Path) -> None:
    assert str(workdir) not in build_request(parse()).model_dump_json()


def test_retune_writes_where_it_is_told_to(workdir: Path) -> None:
    save_profile(workdir / "dltune.json", make_profile(request=make_request().record()))
    result = invoke("retune", "--output", "nowhere/new.json")
    assert result.exit_code == 1
    assert "nowhere/new.json cannot be written: there is no folder" in result.stderr


@pytest.mark.parametrize("arguments", [("--storage", "nonsense://there/db"), ()], ids=["the option", "the environment"])
def test_retune_opens_the_storage_that_is_given_and_not_that_of_the_profile(
    workdir: Path, arguments: tuple[str, ...]
) -> None:
    request = make_request(storage="postgresql://me:secret@host/db").record()
    save_profile(workdir / "dltune.json", make_profile(request=request))
    result = invoke("retune", *arguments, env={} if arguments else {"DLTUNE_STORAGE": "nonsense://there/db"})
    assert result.exit_code == 2
    assert "nonsense://there/db cannot be opened" in result.stderr


def test_the_command_line_can_be_imported_where_clicks_types_are_not_generic_yet() -> None:
    code = "import click; click.ParamType = type('ParamType', (), {'convert': None}); import autotune.cli.params"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_request_without_a_dataset_cannot_be_built() -> None:
    with pytest.raises(UsageError):
        build_request(parse() | {"dataset": None})
