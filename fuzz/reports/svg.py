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
WIDEST: Final = 950
"""Pixels after which boxes go on below."""
CHARACTER: Final = 8
"""Pixels of a character at most, so that no label is wider than its box."""
MAX_CELLS: Final = 12
MAX_STEPS: Final = 40


@dataclass(frozen=True)
class _Box:
    label: str
    style: str
    wrong: bool = False
    starts: bool = False
    """A chunk begins here: a heavier line on the left."""
    ends: bool = False
    """A prompt ends here: a heavier line on the right."""
    apart: bool = False
    """A subgroup begins here: a gap on the left."""
    title: str = ""

    @property
    def width(self) -> int:
        """Pixels."""
        return max(CELL[0], CHARACTER * len(self.label) + 8)


def draw_steps(told: Explanation) -> str:
    """The steps as one picture, each in a group of class `step`."""
    lines: list[tuple[str, str, list[_Box]]] = []
    for picture in told.steps[:MAX_STEPS]:
        name = f"step {picture.index}"
        lines.append((f'class="step{" falls" if picture.falls else ""}"', name, _boxes(picture, told)))
    more = len(told.steps) - len(lines)
    if more > 0:
        lines.append(("", "", [_Box(f"and {more} more steps", "event")]))
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
    boxes = [_Box(event, "event") for event in picture.events]
    if not picture.runs and picture.empty_group_at is None:
        boxes.append(_Box("nobody", "event", title="nobody is scheduled"))
    group = 0
    for place, run in enumerate(picture.runs):
        if picture.empty_group_at == place:
            boxes.append(_EMPTY_GROUP)
        boxes += _run(run, told, apart=run.group != group)
        group = run.group
    if picture.empty_group_at == len(picture.runs):
        boxes.append(_EMPTY_GROUP)
    boxes += [_Box("pad", "none", title="a row of padding")] * min(picture.padding, 4)
    if picture.padding > 4:
        boxes.append(_Box(f"+{picture.padding - 4}", "none", title=f"{picture.padding - 4} more rows of padding"))
    return boxes + [_Box(f"{name} answered", "event") for name in picture.answered]


_EMPTY_GROUP: Final = _Box("empty", "none", apart=True, title="an empty subgroup is handed over here")


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
            run.closes and position == run.first + run.count - 1,
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
    height = CELL[1]
    parts: list[str] = []
    y, widest = 0, 0
    for attributes, label, boxes in lines:
        parts.append(f'<g {attributes}><text x="0" y="{y + 18}">{escape(label)}</text>')
        x = LEFT
        for box in boxes:
            x += GAP if box.apart else 0
            if x > LEFT and x + box.width > WIDEST:
                x, y = LEFT, y + height + 4
            parts.append(_box(box, x, y))
            x += box.width
            widest = max(widest, x)
        parts.append("</g>")
        y += height + 10
    return (
        f'<svg role="img" aria-label="{escape(name)}" width="{widest + 2}" height="{y}" '
        f'viewBox="0 0 {widest + 2} {y}">{"".join(parts)}</svg>'
    )


def _box(box: _Box, x: int, y: int) -> str:
    width, height = box.width, CELL[1]
    shape = f'<rect x="{x + 1}" y="{y + 1}" width="{width - 2}" height="{height - 2}" rx="3"/>'
    label = f'<text x="{x + width / 2:g}" y="{y + 17}" text-anchor="middle">{escape(box.label)}</text>'
    edges = [x + 2] * box.starts + [x + width - 2] * box.ends
    border = "".join(f'<path class="border" d="M{edge} {y + 1}v{height - 2}"/>' for edge in edges)
    cross = f'<path class="cross" d="M{x + 3} {y + height - 3}L{x + width - 3} {y + 3}"/>' if box.wrong else ""
    title = f"<title>{escape(box.title)}</title>" if box.title else ""
    return f'<g class="{box.style}{" wrong" if box.wrong else ""}">{title}{shape}{cross}{label}{border}</g>'
