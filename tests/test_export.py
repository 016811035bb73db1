"""What is exported: a test that is red where the subject is wrong and green where it is right, and an issue."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from fuzz.campaign import Budget, fuzz, scenarios
from fuzz.check import regressions
from fuzz.cli import main
from fuzz.draws import SeededDraw
from fuzz.export import as_issue, as_pytest
from fuzz.export.test import MOST_WEIGHTS
from fuzz.findings import ExportError, Finding
from fuzz.mix import for_subjects, swarm
from impl.builtin import BUILTIN
from impl.loading import load
from oracle.scenario import Head, Options, Request, Scenario, Step
from tests import subjects

CPU = torch.device("cpu")


def passes(source: str) -> bool:
    """Whether a test file's only test passes; an error that is no verdict is raised."""
    names: dict[str, Any] = {"__name__": "exported"}
    exec(compile(source, "exported.py", "exec"), names)
    test = next(value for name, value in names.items() if name.startswith("test_"))
    try:
        test()
    except (AssertionError, RuntimeError, ValueError, IndexError):
        return False
    return True


@pytest.fixture
def own_modules() -> Iterator[None]:
    """Exported tests import the subject's file by its module's name."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("mine", None)


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize("slip", subjects.SLIP)
def test_the_test_is_red_on_the_faulty_subject_and_green_on_a_right_one(slip: str, tmp_path: Path) -> None:
    subject = load(subjects.write(tmp_path, slip))
    report = fuzz([subject], Budget(max_scenarios=400), seed=2, device=CPU)
    assert report.findings
    for finding in report.findings:
        assert not passes(as_pytest(finding)), finding
        sys.modules.pop("mine")
    subjects.write(tmp_path)
    for finding in report.findings:
        assert passes(as_pytest(finding)), finding


def some_scenarios() -> Iterator[Scenario]:
    yield from regressions()
    mix = for_subjects(BUILTIN.values())
    for seed in range(6):
        yield from islice(scenarios(swarm(replace(mix, hidden_sizes=(4, 1, 3)), SeededDraw(seed)), seed), 40)


def can_be_exported(scenario: Scenario) -> bool:
    """Not where no pooler is called, nor where one matrix would take rows of several widths."""
    widths = {
        len(request.returned_token_ids or ())
        for request in scenario.requests
        if scenario.pooling_type(request) == "STEP"
    }
    learned = scenario.options.head.embedding_size or scenario.options.head.num_labels
    scored = any(request.query is not None for request in scenario.requests)
    told = bool(scenario.requests and scenario.steps) and not scored
    return told and not (learned and widths - {0}) and not is_wide(scenario.options)


def is_wide(options: Options) -> bool:
    """Whether a layer has too many weights to be written out."""
    head = options.head
    sizes = [head.embedding_size or 0, head.num_labels or 0, options.hidden_size if head.dense else 0]
    return options.level == "pooler" and max(sizes) * options.hidden_size > MOST_WEIGHTS


def test_the_test_is_green_on_a_right_subject_whatever_the_scenario() -> None:
    exported = 0
    for scenario in filter(can_be_exported, some_scenarios()):
        source = as_pytest(Finding("sliced", "values", "violates", "", "wrong", scenario, spec="sliced"))
        assert passes(source), source
        exported += 1
    assert exported > 150


def test_a_wide_layer_is_not_written_out() -> None:
    request, step = Request("a", "classify", (1,)), Step((("a", 1),))
    options = Options(level="pooler", hidden_size=4096, head=Head(dense=True))
    finding = Finding(
        "sliced", "values", "violates", "", "wrong", Scenario((request,), (step,), options), spec="sliced"
    )
    with pytest.raises(ExportError, match="16,777,216 weights, too many to write into a test"):
        as_pytest(finding)


def test_what_can_not_be_a_test_is_told() -> None:
    empty = Finding("s", "values", "violates", "", "wrong", Scenario((), ()))
    with pytest.raises(ExportError, match="no pooler is called"):
        as_pytest(empty)


def test_a_long_prompt_is_computed_by_the_same_formula() -> None:
    def told(length: int, content: Any) -> str:
        scenario = Scenario(
            (Request("a", "token_embed", (1,) * length, nan_at=1), Request("b", "token_embed", (1,) * 5)),
            (Step((("a", length), ("b", 5))),),
            Options(content=content, seed=7, hidden_size=3),
        )
        return as_pytest(Finding("sliced", "values", "violates", "", "wrong", scenario, spec="sliced"))

    for content in ("exact", "float"):
        names: dict[str, Any] = {}
        exec(told(300, content), names)
        written = told(5, content)
        assert "prompt_rows" not in written
        literal = written.split("b = ")[1].split(", dtype")[0] + ")"
        torch.testing.assert_close(eval(literal), names["prompt_rows"](1, 5), rtol=0, atol=0)


def test_a_contract_of_the_caller_can_not_be_exported_as_a_test() -> None:
    scenario = Scenario((Request("a", "embed", (1,)),), (Step((("a", 1),)),))
    finding = Finding("s", "contiguity", "violates", "", "wrong", scenario, step=0)
    with pytest.raises(ExportError, match="contiguity can't be told by a standalone test"):
        as_pytest(finding)
    # As an issue it can; it lacks the test.
    assert "```python" not in as_issue(finding)


def poolproof(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_an_exported_file_runs_by_itself(tmp_path: Path) -> None:
    spec = subjects.write(tmp_path, "loses chunks")
    kept = tmp_path / "findings"
    poolproof("fuzz", "--subject", spec, "--max-scenarios", "100", "--seed", "1", "--save", kept)
    (found,) = kept.glob("*row-count*.json")
    test = tmp_path / "test_exported.py"
    assert poolproof("export", found, "--as", "pytest", "--output", test).exit_code == 0
    # Isolated, and in another directory: nothing of this project can be imported there.
    command = [sys.executable, "-I", "-m", "pytest", "-q", "-p", "no:cacheprovider", test.name]
    red = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert red.returncode == 1, red.stdout
    assert "1 failed" in red.stdout
    subjects.write(tmp_path)
    green = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert green.returncode == 0, green.stdout


def test_an_issue_says_what_where_and_with_which_versions(tmp_path: Path) -> None:
    spec = subjects.write(tmp_path, "loses chunks")
    scenario = tmp_path / "scenario.json"
    scenario.write_text(
        '{"version": 1, "requests": [{"name": "a", "task": "token_embed", "prompt_token_ids": [1, 1]}],'
        ' "steps": [{"scheduled": [["a", 1]]}, {"scheduled": [["a", 1]]}]}'
    )
    told = poolproof("export", scenario, "--as", "issue", "--subject", spec)
    assert told.exit_code == 0
    assert told.output.startswith("# Request a lost 1 of its 2 rows in step 1: its chunk of step 0 is missing.\n")
    assert f"- torch {torch.__version__}" in told.output
    assert ">step 1 (a1]" in told.output
    assert "def test_row_count():" in told.output


def test_what_can_not_be_exported_is_told(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.json"
    scenario.write_text('{"version": 1, "requests": [], "steps": []}')
    unnamed = poolproof("export", scenario, "--as", "issue")
    assert unnamed.exit_code == 2
    assert "say with --subject on what to run it" in unnamed.stderr
    right = poolproof("export", scenario, "--as", "issue", "--subject", "sliced")
    assert right.exit_code == 2
    assert "sliced is not wrong on" in right.stderr
