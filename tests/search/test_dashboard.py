"""Optuna's dashboard opens a study of dltune's, and people can read what it lists."""

from __future__ import annotations

import io
import json
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from autotune.search.study import METRIC
from autotune.settings import SETTINGS
from autotune.tuning import tune
from tests.builders import make_machine
from tests.test_tuning import Bench, make_request, saturating, waiting_workload

URL = "sqlite:///.dltune/studies.db"
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("workdir")]


def ask(path: str) -> Any:
    """Ask the dashboard for a page of its API, as a browser does."""
    from optuna_dashboard import wsgi

    environment: dict[str, Any] = {"PATH_INFO": path, "REQUEST_METHOD": "GET", "wsgi.input": io.BytesIO()}
    setup_testing_defaults(environment)
    statuses: list[str] = []
    body = b"".join(wsgi(URL)(environment, lambda status, headers, error=None: statuses.append(status)))
    assert statuses == ["200 OK"], body
    return json.loads(body)


def tune_one() -> None:
    tune(make_request(), run_trial=Bench(saturating), machine=make_machine(), workload=waiting_workload())


def list_attributes(page: dict[str, Any]) -> dict[str, Any]:
    return {attribute["key"]: attribute["value"] for attribute in page["user_attrs"]}


def test_a_study_is_listed_under_the_name_of_its_dataset_with_what_was_tuned_where() -> None:
    tune_one()
    (study,) = ask("/api/studies")["study_summaries"]
    assert study["study_name"].startswith("pkg:make-")
    assert study["directions"] == ["maximize"]
    told = list_attributes(study)
    assert (told["dataset"], told["step"]) == ("pkg:make", "built-in")
    assert told["machine"] == "no GPU, 4 CPUs, 16.0 GiB, /dev/shm 8.0 GiB"


def test_every_trial_is_listed_with_dataloaders_own_names_and_what_became_of_it() -> None:
    tune_one()
    (study,) = ask("/api/studies")["study_summaries"]
    page = ask(f"/api/studies/{study['study_id']}")
    assert page["objective_names"] == [METRIC]
    assert len(page["trials"]) >= 5
    for trial in page["trials"]:
        assert {parameter["name"] for parameter in trial["params"]} <= set(SETTINGS)
        assert trial["values"][0] > 0
        told = list_attributes(trial)
        assert set(told) <= {"outcome", "expected_samples_per_second", "peak_host_bytes", "peak_shm_bytes", "reason"}
        assert told["outcome"] == "completed"
