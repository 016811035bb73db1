"""Who should notice a mutant of a module. Each judge returns what it noticed, or an empty string.

A judge is called in a process of its own, in which the mutant is what gets imported.
"""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

SEED: Final = 7
SCENARIOS: Final = 400
"""Of the short fuzz, for each built-in; the full check is for what survives it."""
SIMULATED_SCENARIOS: Final = 300

TESTS: Final = {
    "oracle/reference.py": ("test_reference", "peers/test_heads", "test_zoo"),
    "oracle/approx.py": ("test_approx", "test_reference", "peers/test_heads", "test_zoo"),
    "oracle/rows.py": ("test_rows", "peers/test_content", "test_zoo"),
    "oracle/metadata.py": ("test_metadata", "test_guard", "test_zoo"),
    "oracle/guard.py": ("test_guard",),
    "oracle/contracts": ("test_contracts", "test_guard", "test_zoo"),
}
"""By module, the tests that are for it: its own, NumPy's of the peers', and the zoo, which tries it all."""
EVERY_SO_MANY: Final = 12
"""Of the zoo's poolers, good and bad, so that a mutant's trial takes seconds; its bad callers all come."""


def fuzz(module: str) -> str:
    """A short fuzz of each built-in pooler that is made of the module."""
    return _fuzz(module, "cpu", SCENARIOS)


def fuzz_simulated(module: str) -> str:
    """The same on the simulated device, where waits are counted."""
    return _fuzz(module, "sim", SIMULATED_SCENARIOS)


def check(module: str) -> str:
    """`poolproof check` of each built-in pooler that is made of the module, until one fails."""
    import torch

    from fuzz.check import check_one

    for subject in _made_of(module):
        report = check_one(subject, torch.device("cpu"), None, lambda event: None)
        if report.findings:
            return f"check: {report.findings[0].contract}"
    return ""


def _made_of(module: str) -> Sequence[Any]:
    from impl.builtin import BUILTIN

    own = BUILTIN.get(Path(module).stem.removesuffix("_pooler"))
    return [own] if own else list(BUILTIN.values())


def tests(module: str) -> str:
    """The tests of a module of the oracle."""
    return _tests([f"tests/{name}.py" for name in TESTS[group(module)]])


def group(module: str) -> str:
    """Modules of one group have the same judges."""
    return next((prefix for prefix in TESTS if module.startswith(prefix)), "impl")


def _fuzz(module: str, where: str, count: int) -> str:
    import torch

    from fuzz.campaign import scenarios
    from fuzz.mix import for_subjects
    from fuzz.start import run
    from oracle.device.named import named

    torch.set_num_threads(1)
    with torch.inference_mode():
        for subject in _made_of(module):
            mix = for_subjects([subject], simulated=where == "sim")
            for scenario in islice(scenarios(mix, SEED), count):
                judgement = run(scenario, subject, named(where))
                if judgement.verdict.is_finding:
                    return f"fuzz: {judgement.contract}"
    return ""


def _tests(files: Sequence[str]) -> str:
    import pytest

    class Failed:
        name = ""

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                self.name = report.nodeid.partition("[")[0]

        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            zoo = [item for item in items if item.name.startswith(("test_a_bad_pooler", "test_a_right_pooler"))]
            left_out = {id(item) for place, item in enumerate(zoo) if place % EVERY_SO_MANY}
            items[:] = [item for item in items if id(item) not in left_out and "outside_the_states" not in item.name]

    failed = Failed()
    # Hypothesis is imported before the fork, and pytest would have liked to be first.
    quiet = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *quiet, *files], plugins=[failed])
    return "" if status == pytest.ExitCode.OK else failed.name or f"{Path(files[0]).stem}: does not start"
