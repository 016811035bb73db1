"""A page for a person: the machine, the plots, each figure. Self-contained, without a network."""

from collections.abc import Sequence
from itertools import groupby

from markupsafe import Markup

from fuzz.bench.plots import plots
from fuzz.bench.run import Result
from fuzz.bench.table import cells, titles
from fuzz.rendering import render


def page(results: Sequence[Result], where: str, rounds: int) -> str:
    """The results as HTML.

    Raises:
        ImportError: matplotlib is not installed.
    """
    # What stands before the picture itself is for files.
    pictures = {name: Markup(svg[svg.index("<svg") :]) for name, svg in plots(results).items()}
    workloads = [
        (workload, [cells(result) for result in group])
        for workload, group in groupby(results, lambda result: result.workload)
    ]
    return render(
        "bench.html.j2", where=where, rounds=rounds, pictures=pictures, titles=titles(results[0].subject),
        workloads=workloads,
    )  # fmt: skip
