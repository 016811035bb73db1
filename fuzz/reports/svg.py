"""A finding's smallest scenario as SVG: each step's rows as boxes, requests by colour, wrong rows crossed.

Colours are classes of the page's style sheet (`q0` to `q7` for requests, `wrong`), so that they follow
its dark and light themes; nothing is told by colour alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from fuzz.blame import Origin
from fuzz.explain import Explanation, Run, StepPicture

COLOURS: Final = 8
CELL: Final = (44, 26)
GAP: Final = 10
"""Pixels between two subgroups."""
LEFT: Final = 70
PER_LINE: Final = 20
"""Cells side by side at most."""
MAX_CELLS: Final = 12
MAX_STEPS: Final = 40


@dataclass(frozen=True)
class _Box:
    label: str
    style: str
    wrong: bool = False
    starts: bool = False
    """A chunk begins here: a heavier line on the left."""
    apart: bool = False
    """A subgroup begins here: a gap on the left."""
    title: str = ""


def draw_steps(told: Explanation) -> str:
    """The steps as one picture, each in a group of class `step`."""
    lines: list[tuple[str, str, list[_Box]]] = []
    for picture in told.steps[:MAX_STEPS]:
        name = f"step {picture.index}"
        lines.append((f'class="step{" falls" if picture.falls else ""}"', name, _boxes(picture, told)))
    return _picture(lines, f"the rows of {len(lines)} steps")


def draw_result(told: Explanation) -> str:
    """What the blamed request should have got and got; empty if no rows are to blame."""
    if told.blame is None:
        return ""
    due = [_named(row.due, told, wrong=False, row=row.row) for row in told.blame.wrong]
    got = [_named(row.got, told, wrong=True, row=row.row) for row in told.blame.wrong]
    rows = [_Box(str(row.row), "none") for row in told.blame.wrong]
    name = f"the wrong rows of request {told.blame.request}"
    return _picture([('class="index"', "row", rows), ("", "due", due), ("", "got", got)], name)


def _boxes(picture: StepPicture, told: Explanation) -> list[_Box]:
    boxes: list[_Box] = []
    group = 0
    for place, run in enumerate(picture.runs):
        if picture.empty_group_at == place:
            boxes.append(_Box("empty", "none", apart=True, title="an empty subgroup is handed over here"))
        boxes += _run(run, told, apart=run.group != group)
        group = run.group
    boxes += [_Box("pad", "none", title="a row of padding")] * min(picture.padding, 4)
    return boxes or [_Box("nobody", "none")]


def _run(run: Run, told: Explanation, apart: bool) -> Iterator[_Box]:
    before = run.first - 1
    for position in run.shown(MAX_CELLS):
        if position != before + 1:
            yield _Box(f"+{position - before - 1}", "none", title=f"{position - before - 1} more rows of {run.request}")
        title = f"request {run.request}, token {position}"
        if position == run.first:
            title += ", prompt begins" if run.opens else ", goes on from an earlier step"
        if position == run.first + run.count - 1:
            title += ", prompt ends" if run.closes else ", to be continued"
        yield _Box(
            f"{run.request[:6]}{position}",
            _colour(run.request, told),
            position in run.misplaced,
            position == run.first,
            apart and position == run.first,
            title,
        )
        before = position


def _named(origin: Origin | None, told: Explanation, wrong: bool, row: int) -> _Box:
    title = f"row {row}: {origin or 'none'}"
    if origin is None:
        return _Box("none", "none", wrong, title=title)
    if origin.kind == "token":
        label = f"{origin.request[:6]}{origin.position}"
        return _Box(label, _colour(origin.request, told), wrong, title=title)
    return _Box(
        {"overwritten": "stale", "computed": "sum"}.get(origin.kind, origin.kind[:7]), "none", wrong, title=title
    )


def _colour(request: str, told: Explanation) -> str:
    names = list(dict.fromkeys(run.request for picture in told.steps for run in picture.runs))
    return f"q{names.index(request) % COLOURS}" if request in names else "none"


def _picture(lines: Sequence[tuple[str, str, list[_Box]]], name: str) -> str:
    width, height = CELL
    parts: list[str] = []
    y, widest = 0, 0
    for attributes, label, boxes in lines:
        parts.append(f'<g {attributes}><text x="0" y="{y + 18}">{escape(label)}</text>')
        x = LEFT
        for place, box in enumerate(boxes):
            if place and place % PER_LINE == 0:
                x, y = LEFT, y + height + 4
            x += GAP if box.apart else 0
            parts.append(_box(box, x, y))
            x += width
            widest = max(widest, x)
        parts.append("</g>")
        y += height + 10
    return (
        f'<svg role="img" aria-label="{escape(name)}" width="{widest + 2}" height="{y}" '
        f'viewBox="0 0 {widest + 2} {y}">{"".join(parts)}</svg>'
    )


def _box(box: _Box, x: int, y: int) -> str:
    width, height = CELL
    shape = f'<rect x="{x + 1}" y="{y + 1}" width="{width - 2}" height="{height - 2}" rx="3"/>'
    label = f'<text x="{x + width / 2:g}" y="{y + 17}" text-anchor="middle">{escape(box.label)}</text>'
    border = f'<path class="border" d="M{x + 1} {y + 1}v{height - 2}"/>' if box.starts else ""
    cross = f'<path class="cross" d="M{x + 3} {y + height - 3}L{x + width - 3} {y + 3}"/>' if box.wrong else ""
    title = f"<title>{escape(box.title)}</title>" if box.title else ""
    return f'<g class="{box.style}{" wrong" if box.wrong else ""}">{title}{shape}{cross}{label}{border}</g>'
