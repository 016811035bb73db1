"""A finding's smallest scenario as text: each step's rows as runs of requests, the wrong rows marked.

Reads without colour and in ASCII; `LEGEND` says how.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from rich.cells import cell_len
from rich.text import Text

from fuzz.blame import Blame, Origin
from fuzz.explain import Explanation, Run, StepPicture

LEGEND = "[ ] ends of a prompt, ( ) borders of a chunk, | of a subgroup, -- padding, ^ wrongly got, > where it breaks"
COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "bright_cyan", "bright_yellow", "bright_magenta")
"""One a request, in turn; red is for what is wrong."""
WRONG = "bold red reverse"
MAX_STEPS = 12
MAX_CELLS = 12
"""Rows of one run that are drawn; of more, the ends and the marked ones."""
MAX_NAME = 10


@dataclass(frozen=True)
class _Cell:
    text: str
    style: str = ""
    mark: str = ""
    """What stands below it; as wide as `text` at most."""

    @property
    def width(self) -> int:
        return cell_len(self.text)


def draw(explanation: Explanation, width: int) -> list[Text]:
    """The scenario and the wrong result, no line wider than `width` columns."""
    styles = _Styles(explanation)
    lines = list(chain.from_iterable(_step(picture, styles, width) for picture in _few(explanation.steps)))
    if explanation.blame is not None:
        lines.append(Text())
        lines += _result(explanation.blame, styles, width)
    for line in lines:
        line.truncate(width)
    return lines


class _Styles:
    """A colour and a label for each request."""

    def __init__(self, explanation: Explanation) -> None:
        names = [run.request for picture in explanation.steps for run in picture.runs]
        self._colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(dict.fromkeys(names))}
        # Where names end in digits, "a12" would not say which token of which request.
        self._between = "." if any(name[-1:].isdigit() for name in names) else ""

    def colour(self, name: str) -> str:
        return self._colours.get(name, "")

    def label(self, name: str, position: int) -> str:
        plain = "".join(character if character.isprintable() else "?" for character in name)
        short = plain if len(plain) <= MAX_NAME else plain[: MAX_NAME - 1] + "~"
        return f"{short}{self._between}{position}"


def _few(steps: Sequence[StepPicture]) -> Iterator[StepPicture]:
    """The steps worth drawing: of many, the first, the last and those where something is marked."""
    ends = MAX_STEPS // 3
    for place, picture in enumerate(steps):
        marked = picture.falls or any(run.misplaced for run in picture.runs)
        if len(steps) <= MAX_STEPS or place < ends or place >= len(steps) - ends or marked:
            yield picture


def _step(picture: StepPicture, styles: _Styles, width: int) -> Iterator[Text]:
    head = f"{'>' if picture.falls else ' '}step {picture.index} "
    cells = [_Cell(f"{event};", "dim") for event in picture.events]
    if not picture.runs and picture.empty_group_at is None:
        cells.append(_Cell("nobody", "dim"))
    group = 0
    for place, run in enumerate(picture.runs):
        if picture.empty_group_at == place:
            cells.append(_Cell("|empty subgroup|", "dim"))
        elif run.group != group:
            cells.append(_Cell("|", "bold"))
        group = run.group
        cells += _run(run, styles)
    if picture.empty_group_at == len(picture.runs):
        cells.append(_Cell("|empty subgroup|", "dim"))
    cells += [_Cell("--", "dim")] * min(picture.padding, 4)
    if picture.padding > 4:
        cells.append(_Cell(f"{picture.padding} of padding", "dim"))
    cells += [_Cell(f"{name} answered", "dim") for name in picture.answered]
    yield from _wrapped(cells, head, width)


def _run(run: Run, styles: _Styles) -> list[_Cell]:
    cells: list[_Cell] = []
    before = run.first - 1
    for position in run.shown(MAX_CELLS):
        if position != before + 1:
            cells.append(_Cell("..", styles.colour(run.request)))
        opening = ("[" if run.opens else "(") if position == run.first else ""
        closing = ("]" if run.closes else ")") if position == run.first + run.count - 1 else ""
        label = styles.label(run.request, position)
        wrong = position in run.misplaced
        cells.append(
            _Cell(
                f"{opening}{label}{closing}",
                WRONG if wrong else styles.colour(run.request),
                " " * len(opening) + "^" * cell_len(label) if wrong else "",
            )
        )
        before = position
    return cells


def _result(blame: Blame, styles: _Styles, width: int) -> Iterator[Text]:
    """What the blamed request should have got and got, wrong row by wrong row."""
    yield Text(f"wrong rows of request {blame.request}'s result:")
    head, due, got = _Cell("row"), _Cell("due"), _Cell("got")
    columns = [(head, due, got)]
    columns += [
        (_Cell(str(row.row)), _named(row.due, styles, ""), _named(row.got, styles, WRONG)) for row in blame.wrong
    ]
    if blame.num_wrong > len(blame.wrong):
        columns.append((_Cell(f"{blame.num_wrong - len(blame.wrong)} more"), _Cell(""), _Cell("")))
    line = [Text(), Text(), Text()]
    for column in columns:
        size = max(cell.width for cell in column)
        if line[0] and line[0].cell_len + 1 + size > width:
            yield from line
            yield Text()
            line = [Text("   "), Text("   "), Text("   ")]
        for text, cell in zip(line, column, strict=True):
            text.append(" " if text else "").append(cell.text, cell.style).append(" " * (size - cell.width))
    for text in line:
        text.rstrip()
        yield text


def _named(origin: Origin | None, styles: _Styles, style: str) -> _Cell:
    if origin is None:
        return _Cell("none", style or "dim")
    if origin.kind == "token":
        return _Cell(styles.label(origin.request, origin.position), style or styles.colour(origin.request))
    return _Cell({"padding": "--", "overwritten": "stale", "computed": "sum"}.get(origin.kind, "?"), style)


def _wrapped(cells: Sequence[_Cell], head: str, width: int) -> Iterator[Text]:
    """Cells side by side, broken over lines where they don't fit, each line's marks below it."""
    line, marks = Text().append(head, "bold"), Text(" " * len(head))
    for cell in cells:
        if line.cell_len + cell.width > width and len(line) > len(head):
            yield from _with_marks(line, marks)
            line, marks = Text(" " * len(head)), Text(" " * len(head))
        line.append(cell.text, cell.style).append(" ")
        marks.append(cell.mark + " " * (cell.width - len(cell.mark)), "bold red").append(" ")
    yield from _with_marks(line, marks)


def _with_marks(line: Text, marks: Text) -> Iterator[Text]:
    line.rstrip()
    yield line
    if marks.plain.strip():
        marks.rstrip()
        yield marks
