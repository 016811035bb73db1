"""The settings file: found upwards, checked key by key, and beaten by the command line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fuzz.cli import main
from fuzz.settings import COMMANDS, find, keys
from tests import subjects


def poolproof(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a wrong pooler, in its own directory."""
    subjects.write(tmp_path, "loses chunks")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_the_file_says_need_not_be_said_again(project: Path) -> None:
    (project / "poolproof.toml").write_text(
        'subject = ["mine.py:factory"]\nmax-scenarios = 60\nsave = "kept"\nledger = "known"\nknown = "allow"\n'
        'report = ["json=out/report.json"]\n'
    )
    found = poolproof("fuzz", "--seed", "1")
    assert found.exit_code == 1, found.output
    assert f"settings: {project}/poolproof.toml" in found.output
    assert "fuzz on mine.py:factory; device cpu; seed 1; at most 60 scenarios" in found.output
    (finding,) = json.loads((project / "out/report.json").read_text())["findings"]
    assert finding["file"].startswith("kept/")

    exported = poolproof("export", finding["file"], "--as", "issue")
    assert exported.stdout.startswith("#")
    assert poolproof("corpus", "list").output.endswith("1 kept in kept\n")
    assert "known from now on: known/" in poolproof("corpus", "accept", finding["file"]).output
    assert poolproof("fuzz", "--seed", "1").exit_code == 0


def test_paths_are_relative_to_the_file_and_it_is_found_upwards(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "pyproject.toml").write_text(
        '[tool.poolproof]\nsubject = ["mine.py:factory", "vllm@checkout", "sliced"]\nsave = "kept"\n'
        'report = ["html", "junit=junit.xml"]\n'
    )
    below = project / "src" / "deep"
    below.mkdir(parents=True)
    # A pyproject.toml that says nothing of poolproof is passed over.
    (below / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    monkeypatch.chdir(below)
    found = find(below)
    assert found is not None
    assert found.path == project / "pyproject.toml"
    assert found.values() == {
        "subject": ["../../mine.py:factory", "vllm@../../checkout", "sliced"],
        "save": "../../kept",
        "report": ["html", "junit=../../junit.xml"],
    }


def test_the_command_line_wins(project: Path) -> None:
    (project / "poolproof.toml").write_text('subject = ["mine.py:factory"]\nmax-scenarios = 60\nmax-time = "1h"\n')
    told = poolproof("fuzz", "--subject", "hostsplit", "--max-scenarios", "30", "--seed", "1")
    assert told.exit_code == 0
    assert "fuzz on hostsplit; device cpu; seed 1; at most 3600 s or 30 scenarios" in told.output


def test_a_replay_is_of_the_subject_that_the_finding_names(project: Path) -> None:
    poolproof("fuzz", "--subject", "mine.py:factory", "--max-scenarios", "60", "--seed", "1")
    (project / "poolproof.toml").write_text('subject = ["hostsplit"]\n')
    (kept,) = (project / ".poolproof/findings").glob("*row-count*.json")
    assert poolproof("replay", str(kept)).exit_code == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max-tiem = '30s'", "there is no key 'max-tiem'; did you mean 'max-time'?"),
        ("oops = 1", "there is no key 'oops'; those there are: subject, max-time,"),
        ("max-time = 'soon'", "'soon' is not a time span; say for example 30s, 5m or 2h - at `$.max-time`"),
        ("memory-limit = 'much'", "'much' is not an amount of memory; say for example 500MB or 4GB"),
        ("report = ['pdf']", "'pdf' is no form of report; say one of html, junit"),
        ("device = 'tpu'", "Invalid enum value 'tpu' - at `$.device`"),
        ("subject = 'mine.py:factory'", "Expected `array`, got `str` - at `$.subject`"),
        ("max-scenarios = 0", "Expected `int` >= 1 - at `$.max-scenarios`"),
        ("known allow", "not TOML: "),
    ],
)
def test_a_file_that_can_not_be_used_is_told_with_the_key(text: str, told: str, project: Path) -> None:
    (project / "poolproof.toml").write_text(text)
    result = poolproof("fuzz")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"could not run: {project}/poolproof.toml: {told}")


def test_a_table_that_is_none_is_told(project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool]\npoolproof = 3\n")
    result = poolproof("subjects")
    assert result.exit_code == 2
    assert "pyproject.toml: Expected `object`, got `int`" in result.stderr


def test_every_key_is_an_option() -> None:
    assert set(keys()) == {key for taken in COMMANDS.values() for key in taken}
    for command, taken in COMMANDS.items():
        options = {option for param in main.commands[command].params for option in param.opts}
        assert {f"--{key}" for key in taken} <= options
