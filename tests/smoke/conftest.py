"""The model, and what it owes. `tox -e smoke` installs what can serve it; elsewhere these tests are skipped."""

import os
from pathlib import Path

import pytest

from tests.smoke import tiny


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the model."""
    if "POOLPROOF_SMOKE" not in os.environ:
        pytest.skip("needs the released CPU build of vLLM 0.32.0; `tox -e smoke` makes an environment that has it")
    directory = tmp_path_factory.mktemp("tiny")
    tiny.make(directory)
    return directory


@pytest.fixture(scope="session")
def due(model: Path) -> dict[str, list[tiny.Rows]]:
    """By task, what each prompt is owed."""
    return tiny.expected(model)
