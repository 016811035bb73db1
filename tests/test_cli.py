"""The command line as a person and a pipeline meet it: names, exit codes, the JSON line, messages."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fuzz.cli import main
from fuzz.cli_options import Duration
from fuzz.findings import write_atomically

OFF_BY_ONE = """
import torch

def factory(config):
    def pool(hidden_states, metadata):
        cursor = metadata.get_pooling_cursor()
        firsts, lasts = cursor.first_token_indices_gpu, cursor.last_token_indices_gpu
        rows = [hidden_states[max(first - 1, 0) : last + 1] for first, last in zip(firsts, lasts)]
        outputs = []
        for state, chunk, done in zip(metadata.pooling_states, rows, cursor.get_finished_mask()):
            state.hidden_states_cache.append(chunk.clone())
            outputs.append(torch.cat(state.hidden_states_cache) if done else None)
            if done:
                state.clean()
        return outputs
    return pool
"""


def poolproof(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def last_line(result: Result) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return data


@pytest.fixture
def off_by_one(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(OFF_BY_ONE)
    return f"{path}:factory"


def test_a_right_pooler_holds(tmp_path: Path) -> None:
    result = poolproof("fuzz", "--max-scenarios", "150", "--seed", "7", "--json", "--save", tmp_path)
    assert result.exit_code == 0, result.output
    data = last_line(result)
    assert data["verdict"] == "holds"
    assert data["subjects"] == ["sliced", "grouped", "hostsplit", "packed"]
    assert data["seed"] == 7
    assert data["scenarios"] == 150
    assert data["comparisons"] > 150
    assert data["findings"] == []
    assert "seed 7" in result.stderr


def test_a_seed_repeats_a_run(tmp_path: Path) -> None:
    runs = [
        last_line(poolproof("fuzz", "--max-scenarios", "60", "--seed", "3", "--json", "--save", tmp_path))
        for _ in range(2)
    ]
    assert runs[0]["comparisons"] == runs[1]["comparisons"]
    assert runs[0]["mix"] == runs[1]["mix"]


def test_an_off_by_one_is_found_named_shrunk_and_replayed(off_by_one: str, tmp_path: Path) -> None:
    result = poolproof(
        "fuzz", "--subject", off_by_one, "--max-scenarios", "200", "--seed", "1", "--json", "--save", tmp_path
    )
    assert result.exit_code == 1, result.output
    finding = next(found for found in last_line(result)["findings"] if found["contract"] == "row-count")
    assert finding["subject"] == off_by_one
    assert len(finding["scenario"]["requests"]) <= 2
    # The row too many is named by its origin.
    assert "its rows are request a, token" in finding["message"]
    assert f"replay: poolproof replay {finding['file']}" in result.stderr

    again = poolproof("replay", finding["file"], "--json")
    assert again.exit_code == 1
    assert last_line(again)["findings"][0]["message"] == finding["message"]
    assert "reproduces: row-count is broken as before" in again.stderr

    saved = Path(finding["file"])
    saved.write_text(saved.read_text().replace("but should get shape", "but should have shape"))
    assert "reproduces differently: it was row-count: step" in poolproof("replay", saved).output

    mended = poolproof("replay", finding["file"], "--subject", "hostsplit")
    assert mended.exit_code == 0
    assert "gone: row-count is no longer broken" in mended.output


def test_check_of_one_subject_is_deterministic_and_says_what_it_covered(tmp_path: Path) -> None:
    result = poolproof("check", "--subject", "hostsplit", "--json", "--save", tmp_path)
    assert result.exit_code == 0, result.output
    assert "465,977 schedules with batch order" in result.stderr
    assert "1,110 states and 19,019 transitions" in result.stderr
    assert last_line(result)["seed"] is None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nosuch", "there is no subject 'nosuch'; give one of sliced, grouped, hostsplit, packed, vllm"),
        ("nosuch.py:factory", "there is no file nosuch.py"),
        ("no.such.module:factory", "no.such.module can't be imported: ModuleNotFoundError"),
        ("math:nosuch", "math has no factory 'nosuch'"),
    ],
)
def test_a_subject_that_cannot_be_had_is_told(spec: str, message: str) -> None:
    result = poolproof("fuzz", "--subject", spec, "--json", "--max-scenarios", "1")
    assert result.exit_code == 2
    assert message in result.stderr
    assert last_line(result)["verdict"] == "error"
    assert last_line(result)["findings"] == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise RuntimeError('boom')", "can't be imported: RuntimeError: boom"),
        ("import sys; sys.exit(3)", "can't be imported: SystemExit: 3"),
        (
            "def factory(config): raise KeyError('no')",
            "could not make a pooler for ALL at level method: KeyError: 'no'",
        ),
        ("def factory(config): ...\nfactory.supports = {'MAX'}", "`supports` is {'MAX'}, but may hold only ALL"),
        ("def factory(config): ...\nfactory.rows = 'both'", "`rows` is 'both', but may hold only group, step"),
        ("def factory(config): ...\nfactory.level = ()", "`level` is (), but may hold only method, pooler"),
    ],
)
def test_a_faulty_subject_file_is_told(source: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    result = poolproof("fuzz", "--subject", f"{path}:factory", "--max-scenarios", "50", "--save", tmp_path)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("{", "not JSON"),
        ('{"version": 9}', "the scenario has version 9 at `$.version`, but this poolproof reads version 1"),
        ('{"kind": "finding", "version": 9}', "the finding has version 9"),
        ('{"kind": "finding", "version": 1}', "missing required field `contract`"),
        ('{"version": 1, "requests": [], "steps": []}', "holds a scenario, not a finding: say with --subject"),
    ],
)
def test_a_file_that_cannot_be_replayed_is_told(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "finding.json"
    if text is not None:
        path.write_text(text)
    result = poolproof("replay", path)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_subject_that_does_not_serve_the_scenario_is_told(tmp_path: Path) -> None:
    path = tmp_path / "scenario.json"
    path.write_text('{"version": 1, "requests": [], "steps": [], "options": {"rows": "step"}}')
    result = poolproof("replay", path, "--subject", "hostsplit")
    assert result.exit_code == 2
    assert "hostsplit doesn't serve this scenario: it asks for level method, rows step" in result.stderr


def test_a_run_that_compares_nothing_is_inconclusive(tmp_path: Path) -> None:
    path = tmp_path / "scenario.json"
    path.write_text('{"version": 1, "requests": [], "steps": []}')
    result = poolproof("replay", path, "--subject", "hostsplit", "--json")
    assert result.exit_code == 3
    assert last_line(result)["verdict"] == "inconclusive"
    assert "nothing was compared" in result.stderr


def test_findings_that_cannot_be_written_are_still_told(off_by_one: str, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a directory should be")
    result = poolproof(
        "fuzz", "--subject", off_by_one, "--max-scenarios", "200", "--seed", "1", "--save", blocked / "sub"
    )
    assert result.exit_code == 2
    assert "row-count" in result.output
    assert "can't be written" in result.stderr


def test_cuda_is_refused_where_there_is_none() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    result = poolproof("fuzz", "--device", "cuda")
    assert result.exit_code == 2
    assert "there is no CUDA device here; run with --device cpu" in result.stderr


@pytest.mark.parametrize("text", ["0", "-3s", "5x", "soon", "inf"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    result = poolproof("fuzz", "--max-time", text)
    assert result.exit_code == 2
    assert "is not a time span" in result.stderr


def test_times() -> None:
    seconds = [Duration().convert(text, None, None) for text in ("90", "30s", "5m", "2h", "0.5s")]
    assert seconds == [90, 30, 300, 7200, 0.5]


def test_contracts_are_listed_with_their_reasons() -> None:
    text = poolproof("contracts").output
    assert "contiguity (before)\n  Each request's rows begin where the previous request's rows end." in text
    assert text.count("Why:") == text.count("Without it:") >= 20


def test_subjects_are_listed() -> None:
    text = poolproof("subjects").output
    assert all(name in text for name in ("sliced", "grouped", "hostsplit", "packed", "vllm", "file.py:factory"))


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.json"
    write_atomically(path, "one")
    with pytest.raises(TypeError):
        write_atomically(path, 2)  # type: ignore[arg-type]
    assert path.read_text() == "one"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.json"]
