"""The gates before a merge, each by running what it runs: pre-commit hook, GitHub Action, GitLab job."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests import command
from tests.command import ROOT

CLS = """
def factory(config):
    def pool(hidden_states, metadata):
        cursor = metadata.get_pooling_cursor()
        if cursor.is_partial_prefill():
            raise ValueError("CLS needs the whole prompt")
        return hidden_states[cursor.first_token_indices_gpu]

    return pool


factory.supports = {"CLS"}
"""
WRONG = CLS.replace("first_token", "last_token")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a right pooler in it, committed, and `poolproof` on the path."""
    command.install(tmp_path / "bin")
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "mine.py").write_text(CLS)
    (repository / ".gitignore").write_text(".poolproof/\n__pycache__/\n")
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "A pooler"]):
        author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *author, *arguments], cwd=repository, check=True)
    return repository


def run(script: str, checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a runner of such jobs would."""
    path = f"{checkout.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=checkout,
        env={**os.environ, "PATH": path, "GITHUB_STEP_SUMMARY": str(checkout.parent / "summary.md"), **environment},
        capture_output=True,
        text=True,
    )


def test_the_pre_commit_hook_runs_only_if_the_pooling_layer_changed(checkout: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    script = f"{hook['entry']} --subject mine.py:factory"
    (checkout / "README").write_text("not code")
    skipped = run(script, checkout)
    assert skipped.returncode == 0
    assert "skipped: nothing that bears on it has changed since HEAD" in skipped.stdout
    (checkout / "mine.py").write_text(WRONG)
    caught = run(script, checkout)
    assert caught.returncode == 1, caught.stderr
    assert "values is broken by mine.py:factory" in caught.stdout
    # Not read as the name of an emoji.
    assert "mine.py:factory: CLS, each of 39 scenarios" in caught.stdout


def test_the_action_annotates_and_keeps_its_reports(checkout: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    steps = {step["name"]: step for step in action["runs"]["steps"]}
    inputs = {name: value.get("default", "") for name, value in action["inputs"].items()}
    assert steps["Check"]["env"] == {name.upper(): f"${{{{ inputs.{name} }}}}" for name in inputs}
    environment = {name.upper(): value for name, value in inputs.items()} | {"SUBJECT": "mine.py:factory"}

    passed = run(steps["Check"]["run"], checkout, **environment)
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert "::error" not in passed.stdout
    (checkout / "mine.py").write_text(WRONG)
    caught = run(steps["Check"]["run"], checkout, **environment)
    assert caught.returncode == 1
    assert "::error file=mine.py,line=3,title=values is broken by mine.py%3Afactory::Request" in caught.stdout
    assert {path.suffix for path in (checkout / inputs["report"]).iterdir()} == {".txt", ".html", ".sarif", ".xml"}
    assert "# Poolproof: violates" in (checkout.parent / "summary.md").read_text()


def test_the_gitlab_job_writes_what_it_uploads(checkout: Path) -> None:
    job = yaml.safe_load((ROOT / "docs" / "gitlab-ci.yml").read_text())["poolproof"]
    (checkout / "mine.py").write_text(WRONG)
    result = run("\n".join(job["script"]), checkout, **job["variables"], CI_MERGE_REQUEST_DIFF_BASE_SHA="HEAD")
    assert result.returncode == 1, result.stderr
    for path in (*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]):
        assert (checkout / path).exists()


def test_the_nightly_job_searches_each_subject_and_writes_what_it_uploads(checkout: Path) -> None:
    job = yaml.safe_load((ROOT / "docs" / "gitlab-ci.yml").read_text())["poolproof-nightly"]
    (checkout / "wrong.py").write_text(WRONG)
    subjects = {"SUBJECTS": "mine.py:factory wrong.py:factory"}
    result = run("\n".join(job["script"]), checkout, **job["variables"] | subjects | {"SCENARIOS": "60"})
    assert result.returncode == 1, result.stderr
    assert "values is broken by wrong.py:factory" in result.stdout
    assert "60 scenarios" in result.stdout
    for path in (*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]):
        assert (checkout / path).exists()


def test_a_baseline_lets_what_was_there_pass_and_nothing_else(checkout: Path) -> None:
    """As a project with an old fault takes the action up: accept, commit, and only what is new fails."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    script = next(step["run"] for step in action["runs"]["steps"] if step["name"] == "Check")
    job = {name.upper(): value.get("default", "") for name, value in action["inputs"].items()} | {"KNOWN": "allow"}
    (checkout / "poolproof.toml").write_text('subject = ["mine.py:factory"]\nledger = "known"\n')
    (checkout / "mine.py").write_text(WRONG)
    assert run(script, checkout, **job).returncode == 1

    accepted = run("poolproof corpus accept --all --why 'not yet mended'", checkout)
    assert accepted.returncode == 0, accepted.stderr
    assert accepted.stdout.startswith("known from now on: known/mine-py-factory-values-")
    baseline = run(script, checkout, **job)
    assert baseline.returncode == 0, baseline.stdout
    assert "holds: 1 finding, of which known: 1, on mine.py:factory" in baseline.stdout
    again = run("poolproof corpus accept --all", checkout)
    assert again.stdout == "nothing in .poolproof/findings that isn't known\n"

    (checkout / "mine.py").write_text(WRONG.replace("token_indices_gpu]", "token_indices_gpu[:2]]"))
    worse = run(script, checkout, **job)
    assert worse.returncode == 1
    assert "violates: 2 findings, of which known: 1, on mine.py:factory" in worse.stdout
    assert "one-output-per-request is broken by mine.py:factory" in worse.stdout

    (checkout / "mine.py").write_text(CLS)
    mended = run(script, checkout, **job)
    assert mended.returncode == 2
    assert "the ledger is out of date: mine-py-factory-values-" in mended.stderr


def test_a_commit_that_is_not_there_is_told(checkout: Path) -> None:
    result = run("poolproof check --subject mine.py:factory --since nosuch", checkout)
    assert result.returncode == 2
    assert "could not run: --since can't compare: fatal: bad revision 'nosuch'" in result.stderr
