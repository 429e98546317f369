"""Opens the search of a usual request as a run does, and reads back what such runs have kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import optuna

from autotune.request import TuningRequest
from autotune.search.ask_tell import Search, open_search
from autotune.search.space import SearchSpace
from autotune.search.storage import open_storage
from autotune.search.trial_record import TrialRecord
from autotune.system.hardware import Hardware
from tests.builders import make_machine, make_request

SPACE = SearchSpace.of(batch_size=(32,), num_workers=(0, 1, 2, 4, 8), pin_memory=(False,))
HARDWARE = make_machine().hardware(None)
URL = "sqlite:///.dltune/studies.db"
SERVER = "sqlite:///file:server.db?uri=true"  # stands in for a server: a database that dltune knows no file of


@contextmanager
def open_one(
    space: SearchSpace = SPACE, hardware: Hardware = HARDWARE, heard: list[str] | None = None, **options: Any
) -> Iterator[Search]:
    request: TuningRequest = make_request(**options)
    heard = [] if heard is None else heard
    with (
        open_storage(request.storage) as storage,
        open_search(storage, request, space, hardware, heard.append) as search,
    ):
        yield search


def tell_one(search: Search, score: float = 1.0) -> TrialRecord:
    asked = search.ask()
    record = TrialRecord(
        number=asked.number, config=asked.config, status="measured", score=score, constraints={"memory": -0.5}
    )
    search.tell(record)
    return record


def read_records(**options: Any) -> list[TrialRecord]:
    with open_one(**options) as search:
        return search.records()


def load_study(name: str, url: str = URL) -> optuna.Study:
    return optuna.load_study(study_name=name, storage=url)
