"""The pytest plugin, as another project's suite meets it."""

from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests import subjects

pytest_plugins = "pytester"

MARKED = """
import pytest

@pytest.mark.poolproof(subject={subject}, max_scenarios=80)
def test_pooler():
    print("the body ran")
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A directory of another project's, from which this one can be imported."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    return pytester


def run(suite: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    installed = entry_points(group="pytest11", name="poolproof")
    plugin = () if installed else ("-p", "fuzz.pytest_plugin")
    return suite.runpytest_subprocess(*plugin, "--poolproof-seed", "1", *arguments)


def test_a_right_subject_passes_and_the_body_runs(suite: pytest.Pytester) -> None:
    suite.makepyfile(MARKED.format(subject="'sliced'"))
    result = run(suite, "-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["poolproof: seed 1", "*the body ran*"])


def test_findings_are_failures_with_the_same_text(suite: pytest.Pytester) -> None:
    source = subjects.RIGHT.replace(*subjects.SLIP["loses chunks"])
    suite.makepyfile(source + MARKED.format(subject="factory"))
    result = run(suite)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "Request a lost 1 of its 2 rows in step 1: its chunk of step 0 is missing.",
            "row-count is broken by *:factory",
            ">step 1 (a1[]]",
            "replay: poolproof replay .poolproof/findings/*.json",
        ]
    )
    assert "the body ran" not in result.stdout.str()


def test_workers_share_the_seed_and_fail_alike(suite: pytest.Pytester) -> None:
    source = subjects.RIGHT.replace(*subjects.SLIP["loses chunks"])
    suite.makepyfile(test_one=source + MARKED.format(subject="factory"), test_two=MARKED.format(subject="'sliced'"))
    result = run(suite, "-n", "2")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*its chunk of step 0 is missing."])


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("subject='nosuch'", "could not run: there is no subject 'nosuch'*"),
        ("subject='sliced', max_time='soon'", "*'soon' is not a time span*"),
        ("max_scenarios=3", "*missing 1 required positional argument: 'subject'*"),
    ],
)
def test_a_marker_that_can_not_be_served_is_told(suite: pytest.Pytester, marker: str, message: str) -> None:
    suite.makepyfile(f"import pytest\n\n@pytest.mark.poolproof({marker})\ndef test_pooler(): ...\n")
    result = run(suite)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([message])


def test_an_option_that_makes_no_sense_is_refused(suite: pytest.Pytester) -> None:
    result = run(suite, "--poolproof-max-time", "soon")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'soon' is not a time span*"])


@pytest.mark.parametrize("processes", ["0", "2"])
def test_the_guard_is_a_fixture(processes: str, suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import numpy as np
        import pytest
        import torch
        from oracle.contracts import ContractError
        from oracle.metadata import PoolingMetadata, PoolingParams, PoolingStates

        def test_guarded(guard):
            metadata = PoolingMetadata(
                torch.tensor([2]), None, None, [PoolingParams(task="token_embed")], [PoolingStates()]
            )
            metadata.build_pooling_cursor(np.array([2]), torch.tensor([2]), torch.device("cpu"))
            rows = torch.ones(2, 4)
            assert len(guard(lambda rows, metadata: [rows], "ALL")(rows, metadata)) == 1
            with pytest.raises(ContractError, match="row-count"):
                guard(lambda rows, metadata: [rows[1:]], "ALL")(rows, metadata)
        """
    )
    run(suite, "-n", processes).assert_outcomes(passed=1)


def test_nothing_heavy_is_imported_for_a_suite_that_asks_for_nothing(suite: pytest.Pytester) -> None:
    suite.makepyfile("import sys\n\ndef test_other(): assert 'torch' not in sys.modules\n")
    run(suite).assert_outcomes(passed=1)
