"""The benchmarks' own tests: what is proved, what is told of given samples, and which workloads there are.

No time is asserted: samples are drawn, or the verdict does not depend on them.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from fuzz.bench import cli as bench_cli
from fuzz.bench import run as bench_run
from fuzz.bench.compare import SMALLEST, compare
from fuzz.bench.limits import limit
from fuzz.bench.measure import Times, interleave
from fuzz.bench.plots import plots
from fuzz.bench.prepared import Prepared, Stage, Timed, WrongError
from fuzz.bench.table import markdown
from fuzz.bench.workloads import BATCHES, Workload, workloads
from fuzz.cli import main
from impl.builtin import BUILTIN
from impl.config import Subject
from impl.loading import load
from oracle.scenario import problems
from tests import subjects

CPU: Final = torch.device("cpu")
WORKLOADS: Final = workloads()
REPEATS: Final = 100


def samples(scale: float, seed: int, rounds: int = 100) -> Times:
    """Times as a busy machine makes them: some noise, and one in five several times too long."""
    draw = np.random.default_rng(seed)
    times = scale * (1 + 0.02 * draw.standard_normal(rounds))
    return np.asarray(np.where(draw.random(rounds) < 0.2, times * draw.uniform(1, 4, rounds), times))


def prepare(workload: str, subject: Subject) -> Prepared:
    """The subject, proved right on the workload."""
    with torch.inference_mode():
        return Stage(WORKLOADS[workload], CPU).prepare(subject)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


# The workloads.


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda workload: workload.name)
def test_a_workload_can_happen(workload: Workload) -> None:
    assert not list(problems(workload.scenario))
    tokens = sum(count for _, count in workload.scenario.steps[-1].scheduled)
    assert tokens * workload.scenario.options.hidden_size <= 8192 * 4096


def test_the_published_workload_is_the_subgroup_of_32_from_16_on() -> None:
    for name in ("published", "published-varying"):
        requests = WORKLOADS[name].scenario.requests
        assert [at for at, request in enumerate(requests) if request.task == "token_classify"] == list(range(16, 48))
        assert (len(requests), sum(request.prompt_len for request in requests)) == (64, 8192)


def test_in_a_chunked_step_one_request_in_eight_gets_its_last_chunk() -> None:
    scenario = WORKLOADS["chunked-32"].scenario
    computed = {request.name: 0 for request in scenario.requests}
    for step in scenario.steps:
        for name, count in step.scheduled:
            computed[name] += count
    finished = [request for request in scenario.requests if computed[request.name] == request.prompt_len]
    assert len(finished) == 4
    assert len(scenario.steps[-1].scheduled) == 32


def test_the_grid_has_all_batch_sizes() -> None:
    assert {WORKLOADS[f"all-{shape}-{n}"].num_requests for shape in ("short", "ragged", "long") for n in BATCHES} == {
        *BATCHES
    }


# The proof.


@pytest.mark.parametrize("name", BUILTIN)
@pytest.mark.parametrize("workload", ["all-short-8", "step-8", "mean-8", "chunked-async-8", "token-embed-mixed-8"])
def test_what_is_right_is_timed_on_what_it_was_proved_on(name: str, workload: str) -> None:
    with torch.inference_mode():
        prepared = prepare(workload, BUILTIN[name])
        for _ in range(3):
            if prepared.timed.reset is not None:
                prepared.timed.reset()
            outputs = prepared.timed.call()
            assert len(outputs) == WORKLOADS[workload].num_requests
    assert prepared.rows.shape[0] == sum(prepared.counts)


def test_a_chunked_step_finds_the_same_states_each_time() -> None:
    with torch.inference_mode():
        timed = prepare("chunked-8", BUILTIN["packed"]).timed
        assert timed.reset is not None
        seen = []
        for _ in range(2):
            timed.reset()
            seen.append([None if output is None else output.clone() for output in timed.call()])
    for first, second in zip(*seen, strict=True):
        assert (first is None) == (second is None)
        assert first is None or torch.equal(first, second)
    assert sum(output is not None for output in seen[0]) == 1


@pytest.mark.parametrize(
    ("slip", "workload"),
    [("loses chunks", "chunked-8"), ("rolls the rows", "all-short-8"), ("hands out views", "all-async-8")],
)
def test_what_is_wrong_is_not_timed(slip: str, workload: str, tmp_path: Path) -> None:
    bad = load(subjects.write(tmp_path, slip))
    with pytest.raises(WrongError), torch.inference_mode():
        prepare(workload, bad)
    result = invoke("bench", "--compare", "packed", bad.spec, "--workload", workload)
    assert result.exit_code == 1
    assert "is not timed" in result.output
    assert "us " not in result.output


def test_right_poolers_are_timed_on_one_memory() -> None:
    stage = Stage(WORKLOADS["all-short-8"], CPU)
    with torch.inference_mode():
        packed, hostsplit = (stage.prepare(BUILTIN[name]) for name in ("packed", "hostsplit"))
    assert packed.rows is hostsplit.rows


# What is told of samples.


def test_identical_copies_are_not_told_apart() -> None:
    verdicts = [compare(samples(10, seed), samples(10, seed + 1000)).verdict for seed in range(REPEATS)]
    assert verdicts.count("no difference seen") >= REPEATS - 1


@pytest.mark.parametrize(("factor", "verdict"), [(1.12, "slower"), (1 / 1.12, "faster")])
def test_a_real_difference_is_seen(factor: float, verdict: str) -> None:
    verdicts = [compare(samples(10, seed), samples(10 * factor, seed + 1000)).verdict for seed in range(REPEATS)]
    assert verdicts == [verdict] * REPEATS


def test_a_difference_too_small_to_matter_is_not_told() -> None:
    quiet = np.full(100, 10.0)
    assert compare(quiet, quiet * (1 + SMALLEST / 2)).verdict == "no difference seen"
    assert compare(quiet, quiet * (1 + SMALLEST * 2)).verdict == "slower"


def test_the_smallest_effect_is_one_that_would_be_seen() -> None:
    for seed in range(20):
        base, other = samples(10, seed), samples(10, seed + 1000)
        told = compare(base, other)
        at_least = 1.05 * (1 + told.smallest_effect) / told.ratio
        assert compare(base, other * at_least).verdict == "slower"


def test_the_same_samples_are_told_alike() -> None:
    assert compare(samples(1, 0), samples(1, 1)) == compare(samples(1, 0), samples(1, 1))


def test_every_participant_has_a_sample_in_every_round_and_is_reset_before_each_call() -> None:
    log: list[str] = []
    timed = [
        Timed("a", lambda: log.append("a"), lambda: log.append("reset")),
        Timed("b", lambda: log.append("b")),
    ]
    taken = interleave(timed, 5, CPU)
    assert [times.shape for times in taken] == [(5,), (5,)]
    assert all((times > 0).all() for times in taken)
    assert all(before == "reset" for before, this in pairwise(log) if this == "a")


def test_more_rounds_are_taken_while_samples_scatter(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def drawn(scatter: float) -> Any:
        def interleaved(participants: Sequence[Timed], rounds: int, *_: object) -> list[Times]:
            taken.append(rounds)
            draw = np.random.default_rng(len(taken))
            return [10 * np.exp(scatter * draw.standard_normal(rounds)) for _ in participants]

        return interleaved

    subjects = [BUILTIN["packed"], BUILTIN["hostsplit"]]
    for scatter, batches in ((0.001, 1), (3.0, 6)):
        taken.clear()
        monkeypatch.setattr("fuzz.bench.run.interleave", drawn(scatter))
        results = bench_run.bench(subjects, WORKLOADS["all-short-1"], 20, CPU)
        assert len(taken) == batches
        assert len(results[0].times_us) == 20 * batches


# The limits.


def test_the_limit_of_views_makes_one_tensor_a_request() -> None:
    with torch.inference_mode():
        prepared = prepare("all-ragged-8", BUILTIN["packed"])
        views = limit("views", prepared).call()
    assert [len(view) for view in views] == prepared.counts


def test_the_limit_of_reading_covers_every_byte() -> None:
    with torch.inference_mode():
        prepared = prepare("mean-8", BUILTIN["packed"])
        total = limit("read", prepared).call()
    assert total == prepared.rows.view(torch.int64).sum()


# The command.


def results_with(low: float, high: float) -> list[bench_run.Result]:
    """Two results, the second beside the first with this interval."""
    times = np.ones(10)
    base = bench_run.Result(WORKLOADS["all-short-1"], "a", times, None, 1.0)
    beside = replace(compare(times, times), ratio=(low + high) / 2, low=low, high=high)
    return [base, replace(base, subject="b", beside_base=beside)]


@pytest.mark.parametrize(
    ("low", "high", "code", "told"),
    [
        (1.06, 1.08, 1, "slower by more than 5 %: b on all-short-1"),
        (1.02, 1.06, 0, "nothing is slower"),
        (0.98, 1.02, 0, "nothing is slower"),
        (0.50, 0.60, 0, "nothing is slower"),
        (0.80, 1.30, 3, "inconclusive"),
    ],
)
def test_fail_if_slower(low: float, high: float, code: int, told: str) -> None:
    exit_code, note = bench_cli.too_slow(results_with(low, high), 0.05)
    assert exit_code == code
    assert note.startswith(told)


def test_bench_tells_a_table_and_one_line_of_json(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    result = invoke(
        "bench", "--compare", "sliced", "packed", "--subject", "hostsplit", "--workload", "all-short-8",
        "--rounds", 10, "--json", "--markdown", page,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.splitlines()[-1])
    assert [entry["subject"] for entry in told["results"]] == ["sliced", "packed", "hostsplit"]
    assert all(entry["times_limit"] > 0 for entry in told["results"])
    assert "verdict" not in told["results"][0]
    assert {entry["verdict"] for entry in told["results"][1:]} <= {"faster", "slower", "no difference seen"}
    assert "| all-short-8 | ALL of 8 short prompts |" in page.read_text()


def test_a_page_leaves_a_gap_where_a_subject_does_not_serve_a_workload() -> None:
    first, second = results_with(0.9, 1.1)
    elsewhere = replace(first, workload=WORKLOADS["cls-8"])
    assert "| cls-8 | CLS of 8 ragged prompts | 1.0 us | - |" in markdown([first, second, elsewhere], "here", 10)


def test_what_was_measured_can_be_looked_at_and_compared_later(tmp_path: Path) -> None:
    page, pictures, stored = tmp_path / "page.html", tmp_path / "plots", tmp_path / "stored.json"
    result = invoke(
        "bench", "--compare", "sliced", "packed", "--workload", "all-short-1", "--workload", "all-short-8",
        "--workload", "cls-8", "--rounds", 10, "--html", page, "--svg", pictures, "--pytest-benchmark", stored,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert [path.name for path in pictures.iterdir()] == ["all-short.svg"]  # one size of CLS is no curve
    words = {
        node.text for node in ElementTree.parse(pictures / "all-short.svg").iter("{http://www.w3.org/2000/svg}text")
    }
    assert {"all-short", "sliced", "packed", "limit", "1", "8"} <= words
    text = page.read_text()
    assert text.count("<svg") == 1
    assert text.count("<h2>") == 3
    compared = subprocess.run(
        [sys.executable, "-m", "pytest_benchmark", "compare", str(stored)], capture_output=True, text=True, check=False
    )
    assert compared.returncode == 0, compared.stderr
    for name in ("all-short-1[sliced]", "all-short-8[packed]", "cls-8[packed]"):
        assert name in compared.stdout
    told = json.loads(stored.read_text())["benchmarks"][0]
    assert told["stats"]["median"] * 1e6 == pytest.approx(told["extra_info"]["median_us"])


def test_the_same_figures_are_drawn_alike() -> None:
    one = bench_run.Result(WORKLOADS["all-short-1"], "a", np.linspace(1, 2, 10), None, 1.0)
    results = [one, replace(one, workload=WORKLOADS["all-short-8"], times_us=np.linspace(3, 5, 10))]
    assert plots(results) == plots(results)


def test_what_was_timed_before_a_wrong_subject_showed_is_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    bad = load(subjects.write(tmp_path, "hands out views"))
    result = invoke(
        "bench", "--compare", "packed", bad.spec, "--rounds", 10, "--markdown", page,
        "--workload", "all-short-1", "--workload", "all-async-8",
    )  # fmt: skip
    assert result.exit_code == 1, result.output
    assert "| all-short-1 |" in page.read_text()


@pytest.mark.parametrize("form", ["--html", "--svg", "--pytest-benchmark"])
def test_a_missing_package_is_told_before_anything_is_timed(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuzz.bench.files.find_spec", lambda name: None)
    result = invoke("bench", form, tmp_path / "there")
    assert result.exit_code == 2
    assert f"{form} takes " in result.output
    assert "pip install 'poolproof[bench]'" in result.output
    assert "published" not in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--workload", "nosuch"], "no workload is called 'nosuch'; there are published,"),
        (["--subject", "packed"], "there is nothing to compare with"),
        (["--compare", "packed", "nosuch"], "there is no subject 'nosuch'"),
        (["--fail-if-slower", "much"], "'much' is not a percentage"),
    ],
    ids=str,
)
def test_bad_usage_is_told_in_a_sentence(arguments: list[str], told: str) -> None:
    result = invoke("bench", *arguments)
    assert result.exit_code == 2
    assert told in result.output
    assert "Traceback" not in result.output


def test_a_subject_that_serves_something_else_is_left_out() -> None:
    only_all: Subject = replace(BUILTIN["packed"], supports=frozenset(("ALL",)))
    assert bench_run.bench([only_all, BUILTIN["packed"]], WORKLOADS["cls-8"], 10, CPU) == []
    results = bench_run.bench([BUILTIN["packed"], only_all], WORKLOADS["cls-8"], 10, CPU)
    assert [result.subject for result in results] == ["packed"]
