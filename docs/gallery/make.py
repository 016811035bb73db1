"""Makes the gallery: `python -m docs.gallery.make`, from the root of the repository.

A room, a directory, for each finding: what the terminal says of it, the page, the exported test and the issue. Five
are of faulty poolers in a file, which stands there too. One is of vLLM 0.20.2, whose sources are fetched once, with a
fault that was published and mended. The last is of the engine of vLLM 0.33.0 and is left as it stands where that is not
installed (`tox -e vllm` makes an environment that has it).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Final

from tests import subjects

GALLERY: Final = Path(__file__).parent
ROOT: Final = GALLERY.parent.parent
SLIPS: Final = {
    "starts early": "row-count",
    "loses chunks": "row-count",
    "keeps a view": "state-owns-its-rows",
    "answers too soon": "none-iff-unfinished",
    "hands out views": "outputs-own-their-rows",
}
"""What is wrong with a pooler, and the contract whose breach is exported."""
RELEASE: Final = "0.20.2"
ENGINE: Final = "0.33.0"


def poolproof(room: Path, *arguments: str) -> str:
    """What the command says, run in a room of the gallery."""
    command = [sys.executable, "-m", "fuzz", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(command, cwd=room, env=environment, stdout=subprocess.PIPE, text=True).stdout


def furnish(room: Path, subject: str, max_scenarios: int, contract: str, *forms: str) -> None:
    """Search, keep what is told, and export what breaks the contract."""
    limits = ("--max-scenarios", str(max_scenarios), "--seed", "1", "--device", "cpu")
    kept = ("--save", "findings", "--report", "html=report.html")
    (room / "terminal.txt").write_text(poolproof(room, "fuzz", "--subject", subject, *limits, *kept))
    findings = room / "findings"
    finding = str(min(findings.glob(f"*{contract}-*.json")).relative_to(room))
    for form in forms:
        told = poolproof(room, "export", finding, "--as", form)
        (room / {"pytest": "exported.py", "issue": "issue.md"}[form]).write_text(told)
    # Where the campaign stands is of no use without the process.
    for state in findings.glob("campaign.*"):
        state.unlink()
    shutil.rmtree(room / "__pycache__", ignore_errors=True)


def pooler(slip: str, room: Path) -> None:
    """A pooler with one slip in it, and what is found."""
    subjects.write(room, slip)
    furnish(room, "mine.py:factory", 300, SLIPS[slip], "pytest", "issue")


def release(room: Path) -> None:
    """A release with a published fault: https://github.com/vllm-project/vllm/pull/41049."""
    furnish(room, f"vllm=={RELEASE}", 300, "one-output-per-request", "pytest", "issue")


def engine(room: Path) -> None:
    """An engine with a published fault: https://github.com/vllm-project/vllm/pull/55192."""
    furnish(room, "vllm-v1", 500, "state-is-fresh-at-the-start", "issue")


ROOMS: Final[dict[str, Callable[[Path], None]]] = {
    **{slip.replace(" ", "-"): partial(pooler, slip) for slip in SLIPS},
    f"vllm-{RELEASE}": release,
    f"vllm-v1-{ENGINE}": engine,
}


def can_be_made(name: str) -> bool:
    """Whether what a room shows is here, or can be fetched."""
    if ROOMS[name] is not engine:
        return True
    try:
        return metadata.version("vllm").split("+")[0] == ENGINE
    except metadata.PackageNotFoundError:
        return False


def main() -> None:
    """Make every room anew."""
    for name in filter(can_be_made, ROOMS):
        room = GALLERY / name
        shutil.rmtree(room, ignore_errors=True)
        room.mkdir()
        ROOMS[name](room)


if __name__ == "__main__":
    main()
