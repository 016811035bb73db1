"""One page for a person: verdict, rates, what was covered, each finding with its pictures.

Self-contained: no script or style from elsewhere, no network. Readable in dark and light, and on paper.
"""

from collections.abc import Iterator

from markupsafe import Markup

from fuzz.campaign import Report
from fuzz.explain import Explanation, counted, explain, facts
from fuzz.rendering import render
from fuzz.reports.svg import draw_result, draw_steps


def as_html(report: Report) -> str:
    """The report as a page."""
    told = [explain(finding) for finding in report.findings]
    return render(
        "report.html.j2",
        report=report,
        told=[
            {
                "about": one,
                "steps": Markup(draw_steps(one)),
                "result": Markup(draw_result(one)),
                "walk": list(walk(one)),
                "facts": list(facts(one)),
            }
            for one in told
        ],
        mix=[(name, count / report.scenarios) for name, count in report.covered] if report.scenarios else [],
        rate=report.scenarios / report.elapsed_s if report.elapsed_s else 0.0,
    )


def walk(told: Explanation) -> Iterator[str]:
    """Each step in words: what is handed over, what is kept of earlier steps, who finishes."""
    for picture in told.steps:
        parts = list(picture.events)
        for run in picture.runs:
            earlier = f" after {run.first} before" if run.first else ""
            end = "finishes" if run.closes else "goes on later"
            parts.append(f"{run.request} gets {counted(run.count, 'row')}{earlier} and {end}")
        if picture.padding:
            parts.append(f"{counted(picture.padding, 'row')} of padding follow")
        parts += [f"{name} is answered" for name in picture.answered]
        if picture.falls:
            parts.append("here the contract is broken")
        yield "; ".join(parts) or "nobody is scheduled"
