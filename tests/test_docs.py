"""Every command in the docs is run, and shows what the page shows; one that isn't run says why.

A fenced block with lines `$ command` is run, all blocks of a page in order and in one directory; of what follows a
command each line must be in its output, in that order, with `...` for anything. `<!-- file: NAME -->` before a block
writes it to a file first, `<!-- not run: REASON -->` leaves it out.
"""

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from docs import reference
from fuzz.cli import main
from tests import command
from tests.command import ROOT

PAGES = [Path("README.md"), Path("CONTRIBUTING.md"), *sorted(Path("docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- (?P<mark>file|not run): (?P<says>[^\n]*?) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
COMMANDS = ("$ ", "poolproof ", "python ", "pytest ", "tox ", "pip ")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and what the comment before it says."""

    page: Path
    mark: str
    says: str
    text: str

    @property
    def is_shell(self) -> bool:
        return any(line.startswith(COMMANDS) for line in self.text.splitlines())


def blocks(page: Path) -> list[Block]:
    found = BLOCK.finditer(page.read_text())
    return [Block(page, match["mark"] or "", match["says"] or "", match["text"]) for match in found]


ALL = [block for page in PAGES for block in blocks(page)]
RUN = [page for page in PAGES if any(block.is_shell and block.mark != "not run" for block in blocks(page))]
LEFT_OUT = [block for block in ALL if block.mark == "not run"]


@pytest.mark.parametrize("page", RUN, ids=str)
def test_the_commands_of_a_page_show_what_it_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.chdir(room)
    status = 0
    for block in blocks(ROOT / page):
        if block.mark == "file":
            Path(block.says).write_text(block.text)
        elif block.is_shell and not block.mark:
            assert block.text.startswith("$ "), f"{page}: a command without `$ `:\n{block.text}"
            for shown in block.text.removeprefix("$ ").split("\n$ "):
                told, *lines = shown.splitlines()
                status, output = run(told, status)
                missing = first_missing(lines, output)
                assert missing is None, f"`{told}` doesn't show {missing!r}, or not there, in:\n{output}"
                assert lines or not output.strip(), f"`{told}` is shown without its output:\n{output}"


def run(told: str, status: int) -> tuple[int, str]:
    """Run a command after one that ended with a status: its own status and output."""
    if told.startswith("poolproof "):
        # In this process, for importing torch takes longer than most commands.
        ended = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"}).invoke(main, shlex.split(told)[1:])
        return ended.exit_code, ended.output
    script = f"(exit {status}); {told}"
    ran = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return ran.returncode, ran.stdout


def first_missing(lines: list[str], output: str) -> str | None:
    """The first line that isn't in the output after the ones before it, if one isn't."""
    seen = iter([" ".join(line.split()) for line in output.splitlines()])
    for line in lines:
        if line.strip() in ("", "..."):
            continue
        pattern = ".*".join(re.escape(" ".join(part.split())) for part in line.split("..."))
        if not any(re.fullmatch(pattern.replace(r".*", r"\s*.*\s*"), other) for other in seen):
            return line
    return None


@pytest.mark.parametrize(
    "block", [pytest.param(block, id=f"{block.page}: {block.text.splitlines()[0]}") for block in LEFT_OUT]
)
def test_what_is_not_run_says_why(block: Block) -> None:
    assert block.is_shell
    assert len(block.says) > 10
    pytest.skip(block.says)


@pytest.mark.parametrize("path", reference.files(), ids=lambda path: path.name)
def test_what_is_made_from_the_code_is_current(path: Path) -> None:
    assert path.read_text() == reference.files()[path], "run `python -m docs.reference`"


def test_a_line_that_is_not_shown_is_noticed() -> None:
    output = "one\n  two   three\nfour 4.0 s\nfive\n"
    assert first_missing(["...", "two three", "four ...", "five"], output) is None
    assert first_missing(["five", "one"], output) == "one"
    assert first_missing(["two"], output) == "two"
