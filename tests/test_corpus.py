"""The corpus: findings are listed, run again, cleared when mended, and made into fixed scenarios."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fuzz.cli import main
from fuzz.corpus import promoted
from fuzz.findings import read
from oracle.scenario import ScenarioError
from tests import subjects


def poolproof(*arguments: Any) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A directory with the one finding of a pooler that loses chunks."""
    kept = tmp_path / "findings"
    spec = subjects.write(tmp_path, "loses chunks")
    poolproof("fuzz", "--subject", spec, "--max-scenarios", "60", "--seed", "1", "--save", kept)
    assert len(list(kept.glob("*.json"))) == 1
    return kept


def test_an_empty_corpus_is_no_error(tmp_path: Path) -> None:
    result = poolproof("corpus", "list", tmp_path / "none")
    assert result.exit_code == 0
    assert result.output.startswith("0 kept")


def test_findings_are_listed_by_what_happened(corpus: Path) -> None:
    (corpus / "damaged.json").write_text("{")
    result = poolproof("corpus", "list", corpus)
    assert result.exit_code == 2
    assert "its chunk of step 0 is missing." in result.output
    assert "damaged.json: damaged: not JSON" in result.output


def test_what_reproduces_stays_and_what_is_mended_drops_out(corpus: Path, tmp_path: Path) -> None:
    again = poolproof("corpus", "prune", corpus)
    assert again.exit_code == 1
    assert ": reproduces: row-count is broken as before" in again.output
    subjects.write(tmp_path)
    assert ": gone: row-count is no longer broken" in poolproof("corpus", "rerun", corpus).output
    assert len(list(corpus.glob("*.json"))) == 1
    mended = poolproof("corpus", "prune", corpus)
    assert mended.exit_code == 0
    assert "removed, for it is gone" in mended.output
    assert list(corpus.glob("*.json")) == []


def test_what_could_not_run_is_kept_and_told(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").unlink()
    result = poolproof("corpus", "prune", corpus)
    assert result.exit_code == 2
    assert "could not run: there is no file" in result.output
    assert len(list(corpus.glob("*.json"))) == 1


def test_a_promoted_scenario_is_run_by_the_check(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (found,) = corpus.glob("*.json")
    result = poolproof("corpus", "promote", found, "--name", "Chunk lost")
    assert result.exit_code == 0
    assert "`poolproof check` runs .poolproof/regressions/chunk-lost.json" in result.output
    assert list(promoted(Path(".poolproof/regressions"))) == [read(found)[0]]
    Path(".poolproof/regressions/damaged.json").write_text("{")
    with pytest.raises(ScenarioError, match=r"damaged\.json: not JSON"):
        list(promoted(Path(".poolproof/regressions")))
    told = poolproof("check", "--subject", "sliced")
    assert told.exit_code == 2
    assert "damaged.json: not JSON" in told.stderr


def test_a_damaged_finding_is_not_promoted(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_text("{")
    result = poolproof("corpus", "promote", damaged)
    assert result.exit_code == 2
    assert "could not run: not JSON" in result.stderr
