"""Latency over the number of requests as SVG, one picture a family of workloads, by matplotlib."""

import io
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from fuzz.bench.run import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plots(results: Sequence[Result]) -> dict[str, str]:
    """An SVG document for each family of which more than one size was timed, by the family's name.

    A line is a subject's median with its quartiles, both axes are logarithmic, and what none can beat is dashed.

    Raises:
        ImportError: matplotlib is not installed.
    """
    families: dict[str, list[Result]] = {}
    for result in results:
        if result.workload.family is not None:
            families.setdefault(result.workload.family, []).append(result)
    return {
        name: _plot(name, members)
        for name, members in families.items()
        if len({member.workload.num_requests for member in members}) > 1
    }


def _plot(name: str, results: Sequence[Result]) -> str:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Text stays text, and two pictures of the same figures are the same bytes.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        _draw(axes, results)
        axes.set_title(name)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def _draw(axes: "Axes", results: Sequence[Result]) -> None:
    by_size = sorted(results, key=lambda result: result.workload.num_requests)
    for subject in dict.fromkeys(result.subject for result in results):
        own = [result for result in by_size if result.subject == subject]
        sizes = [result.workload.num_requests for result in own]
        first, median, third = np.array([np.quantile(result.times_us, (0.25, 0.5, 0.75)) for result in own]).T
        (line,) = axes.plot(sizes, median, marker="o", markersize=4, label=subject)
        axes.fill_between(sizes, first, third, alpha=0.2, color=line.get_color(), linewidth=0)
    limits = [
        (size, next(group).limit_us) for size, group in groupby(by_size, lambda result: result.workload.num_requests)
    ]
    known = [(size, limit_us) for size, limit_us in limits if limit_us is not None]
    if known:
        axes.plot(*zip(*known, strict=True), linestyle="--", color="black", label="limit")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted({size for size, _ in limits}), [str(size) for size in sorted({size for size, _ in limits})])
    axes.set_xlabel("requests in the step")
    axes.set_ylabel("us a call")
    axes.grid(alpha=0.3)
    axes.legend()
