"""The tables of the page: every trial, the time of a batch, which settings matter."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree.ElementTree import fromstring

from autotune.profiles.schema import TunedProfile
from autotune.profiles.search_record import BatchTimeBreakdown, SearchEvidence
from autotune.report.html import render_html
from tests.builders import (
    make_config,
    make_evidence,
    make_full_profile,
    make_profile,
    make_profile_result,
    make_trial_line,
)
from tests.report.page_reader import read


@dataclass(frozen=True)
class Cell:
    text: str
    value: str | None


def read_trials(profile: TunedProfile) -> list[dict[str, Cell]]:
    """Read the table of trials: the cells of each row by their headings."""
    page = render_html(profile, "dltune.json")
    table = fromstring(page[page.index('<table id="trial-table">') :].partition("</table>")[0] + "</table>")
    headings = ["".join(head.itertext()) for head in table.iter("th")]
    rows = [
        [Cell("".join(cell.itertext()), cell.get("data-value")) for cell in row.iter("td")] for row in table.iter("tr")
    ]
    return [dict(zip(headings, row, strict=True)) for row in rows if row]


def read_fates(profile: TunedProfile) -> list[str]:
    return [row["What became of it"].text for row in read_trials(profile)]


def test_every_trial_is_a_row_and_the_answer_is_marked() -> None:
    assert [row["Trial"].text for row in read_trials(make_full_profile())] == ["1", "2", "3", "4", "5"]
    marked = ["This is the answer." in fate for fate in read_fates(make_full_profile())]
    assert marked == [False, True, False, False, False]
    assert ("tr", {"class": "answer"}) in read(make_full_profile()).elements


def test_a_trial_is_told_with_its_settings() -> None:
    row = read_trials(make_full_profile())[1]
    settings = [row[heading].text for heading in ("Workers", "Prefetch", "Batch", "Flags")]
    assert settings == ["4", "2", "64", "persistent"]
    assert [row["±"].text, row["Expected"].text, row["/dev/shm"].text] == ["5 %", "1,400", "32.0 MiB"]


def test_a_rejected_trial_says_why() -> None:
    skipped = make_trial_line(6, outcome="skipped", samples_per_second=None, reason="Predicted over a limit: /dev/shm.")
    fates = read_fates(make_full_profile(evidence=make_evidence(trials=(*make_evidence().trials, skipped))))
    assert fates[3].startswith("Stopped early")
    assert fates[4] == "Failed. It filled /dev/shm: 64 MiB used of 64 MiB."
    assert fates[5] == "Skipped. Predicted over a limit: /dev/shm."


def test_a_cell_is_sorted_by_its_number_and_not_by_its_words() -> None:
    rows = read_trials(make_full_profile())
    assert rows[1]["Memory"] == Cell("1.0 GiB", str(1 << 30))
    assert rows[1]["Samples/s"] == Cell("1,790", "1790.0")
    assert rows[4]["Samples/s"] == Cell("-", "")
    assert rows[0]["Prefetch"] == Cell("-", "")
    assert rows[0]["Workers"] == Cell("0", "0")


def test_memory_is_told_of_every_trial_beside_both_limits_and_of_the_answer() -> None:
    text = read(make_full_profile()).text
    assert "A trial may use 8.0 GiB of host memory and 4.0 GiB of /dev/shm." in text
    assert "1.0 GiB of 8.0 GiB allowed; /dev/shm 64.0 MiB of 4.0 GiB" in text
    assert [row["Memory"].text for row in read_trials(make_full_profile())] == ["1.0 GiB"] * 4 + ["-"]
    assert [row["/dev/shm"].text for row in read_trials(make_full_profile())] == ["-"] + ["32.0 MiB"] * 3 + ["-"]


def test_where_no_memory_was_sampled_nothing_is_said_of_it() -> None:
    blind = make_profile_result(peak_host_bytes=0, peak_shm_bytes=0)
    trials = (make_trial_line(1, peak_host_bytes=0, peak_shm_bytes=0),)
    profile = make_full_profile(result=blind, evidence=make_evidence(trials=trials))
    assert "Peak host memory" not in read(profile).text
    assert [row["Memory"] for row in read_trials(profile)] == [Cell("-", "")]


def test_the_time_of_a_batch_is_split_before_and_after() -> None:
    text = read(make_full_profile()).text
    assert "99.0 ms" not in text
    assert "97.0 ms fetch 60.0 ms · collate 4.0 ms · send to the training process 1.0 ms · step 32.0 ms" in text
    assert "64.0 ms waiting for data 44.8 ms · step and the rest 19.2 ms" in text  # 64 samples at 1,000/s, 70 % waiting
    assert "35.6 ms waiting for data 3.6 ms · step and the rest 32.0 ms" in text  # at 1,800/s, 10 % waiting
    assert "copy to the device" not in text


def test_copies_to_the_device_are_a_part_of_the_time_of_a_batch() -> None:
    work = BatchTimeBreakdown(samples=64, load=0.06, collate=0.004, transfer=0.001, copy_seconds=0.002, step=0.032)
    assert "copy to the device 2.0 ms" in read(make_full_profile(evidence=make_evidence(batch_time=work))).text


def test_without_evidence_the_time_is_that_of_the_tuned_batch() -> None:
    text = read(make_profile()).text
    assert text.count("64.0 ms") == 1
    assert "For 64 samples." in text
    assert "collate" not in text


def test_a_baseline_that_was_kept_has_one_time() -> None:
    kept = make_profile_result(verdict="no_change", speedup=1.0, speedup_ci95=(1.0, 1.0))
    text = read(make_full_profile(result=kept)).text
    assert "Kept, in training" in text
    assert "Before, in training" not in text


def test_the_most_important_knob_stands_first() -> None:
    importance = {"in_order": 0.1, "num_workers": 0.7, "batch_size": 0.2}
    text = read(make_full_profile(evidence=SearchEvidence(knob_importance=importance))).text
    assert "num_workers 70 % batch_size 20 % in_order 10 %" in text


def test_where_batches_are_the_users_own_the_time_is_that_of_a_thousand_samples() -> None:
    assert "For 1,000 samples." in read(make_profile(dataloader=make_config(4, batch_size=None).dataloader)).text
