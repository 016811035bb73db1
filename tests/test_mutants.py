"""What is argued about mutants is about code that is still there."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ARGUED = tomllib.loads((ROOT / "tests/mutants/argued.toml").read_text(encoding="utf-8"))["mutant"]


@pytest.mark.parametrize("entry", ARGUED, ids=lambda entry: entry["becomes"])
def test_an_argument_is_about_a_line_of_today(entry: dict[str, str]) -> None:
    source = " ".join(line.strip() for line in (ROOT / entry["module"]).read_text(encoding="utf-8").splitlines())
    assert entry["was"] in source
    assert entry["becomes"] != entry["was"]
    assert entry["why"].endswith(".")


def test_nothing_is_argued_twice() -> None:
    keys = [(entry["module"], entry["was"], entry["becomes"]) for entry in ARGUED]
    assert len(set(keys)) == len(keys)
