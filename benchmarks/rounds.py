"""How are predictions and whole runs taken in turn, so that no drift of the machine favours one of them?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from autotune.settings import describe_config
from benchmarks.progress import say
from benchmarks.records import Entrant
from benchmarks.screening import Track
from benchmarks.training.messages import Order, TrainingRun
from benchmarks.training.trainer import Trainee, TrainingError

ALWAYS_PREDICTED: Final = {"dltune", "grid 1"}  # on a device
FIRST_PREDICTED: Final = {*ALWAYS_PREDICTED, "defaults"}  # in the first round there


def run_round(track: Track, entrants: Sequence[Entrant], number: int, rounds: int) -> list[Entrant]:
    """Predict and train the entrants in turn, each whole run in a fresh process.

    Args:
        track: What is trained.
        entrants: Who takes part.
        number: Of the round, from 0.
        rounds: How many there are.

    Returns:
        The entrants with what was measured; whoever failed is no longer among them.
    """
    if track.workload.device is None:
        return _measure_each(track, entrants, number, rounds)
    current = list(entrants)
    for part in (_predict_some, _train_all) if number % 2 else (_train_all, _predict_some):
        current = part(track, current, number)
    return current


def _measure_each(track: Track, entrants: Sequence[Entrant], number: int, rounds: int) -> list[Entrant]:
    """Predict and train one after the other; each round begins elsewhere, and every second time with training."""
    found: dict[int, Entrant] = {}
    shift = number * len(entrants) // rounds
    for place in (*range(shift, len(entrants)), *range(shift)):
        entrant = entrants[place]
        trial_first = (number + place) % 2 == 0
        if trial_first:
            entrant = _predict(track, entrant, number)
        trainee = track.start_for(entrant.config)
        try:
            run = _train(track, trainee, entrant, number) if _is_ready(trainee, entrant) else None
        finally:
            trainee.close()
        if run is not None:
            entrant = entrant.add_run(run)
            found[place] = entrant if trial_first else _predict(track, entrant, number)
    return [found[place] for place in sorted(found)]


def _predict_some(track: Track, entrants: Sequence[Entrant], number: int) -> list[Entrant]:
    wanted = ALWAYS_PREDICTED if number else FIRST_PREDICTED
    return [_predict(track, entrant, number) if wanted & {*entrant.labels} else entrant for entrant in entrants]


def _predict(track: Track, entrant: Entrant, number: int) -> Entrant:
    found = track.predict(track.workload, entrant.config, entrant.epochs)
    _say(entrant, number, found.failure or f"predicted {found.samples_per_second:,.0f}/s")
    return entrant.add_prediction(found)


def _train_all(track: Track, entrants: Sequence[Entrant], number: int) -> list[Entrant]:
    """Have a process for each get ready, all side by side; then let one after the other train, alone."""
    trainees = [track.start_for(entrant.config) for entrant in entrants]
    runs: dict[int, TrainingRun] = {}
    try:
        ready = [place for place, trainee in enumerate(trainees) if _is_ready(trainee, entrants[place])]
        shift = number % max(1, len(ready))
        for place in (*ready[shift:], *ready[:shift]):
            run = _train(track, trainees[place], entrants[place], number)
            trainees[place].close()
            if run is not None:
                runs[place] = run
    finally:
        for trainee in trainees:
            trainee.close()
    return [entrant.add_run(runs[place]) for place, entrant in enumerate(entrants) if place in runs]


def _is_ready(trainee: Trainee, entrant: Entrant) -> bool:
    try:
        trainee.await_ready()
    except TrainingError as error:
        say(f"  {describe_config(entrant.config)} could not get ready: {error}")
        return False
    return True


def _train(track: Track, trainee: Trainee, entrant: Entrant, number: int) -> TrainingRun | None:
    limit = track.workload.pacing.give_up_seconds
    try:
        run = trainee.train(Order(config=entrant.config, epochs=entrant.epochs, max_seconds=limit))
    except TrainingError as error:
        say(f"  {describe_config(entrant.config)} failed: {error}")
        return None
    _say(entrant, number, f"{run.trained.samples_per_second:,.0f}/s")
    return run


def _say(entrant: Entrant, number: int, words: str) -> None:
    say(f"  round {number + 1}   {describe_config(entrant.config)}  {words}  ({', '.join(entrant.labels)})")
