"""What was measured in the form in which pytest-benchmark stores it, so that its tools compare runs over time."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fuzz.bench.run import Result


def stored(results: Sequence[Result]) -> str:
    """A JSON file for `pytest-benchmark compare`: a benchmark for each subject on each workload, times in seconds.

    Raises:
        ImportError: pytest-benchmark is not installed.
    """
    from pytest_benchmark import __version__
    from pytest_benchmark.plugin import pytest_benchmark_generate_machine_info
    from pytest_benchmark.utils import get_commit_info

    told = {
        "machine_info": pytest_benchmark_generate_machine_info(),
        "commit_info": get_commit_info(),
        "benchmarks": [_benchmark(result) for result in results],
        "datetime": datetime.now(UTC).isoformat(),
        "version": __version__,
    }
    return json.dumps(told, indent=1)


def _benchmark(result: Result) -> dict[str, Any]:
    from pytest_benchmark.stats import Stats

    stats = Stats()
    for time_us in result.times_us.tolist():
        stats.update(time_us / 1e6)
    # A round here is a sample of as many calls as its clock needs, told as the time of one.
    figures = {**stats.as_dict(), "data": stats.data, "iterations": 1}
    name = f"{result.workload.name}[{result.subject}]"
    return {
        "group": result.workload.name, "name": name, "fullname": f"poolproof bench::{name}", "params": None,
        "param": None, "extra_info": result.to_builtins(), "options": {}, "stats": figures,
    }  # fmt: skip
