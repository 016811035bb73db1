"""Makes the gallery: `python -m docs.gallery.make`, from the root of the repository.

For each faulty pooler a directory with the pooler, what the terminal says of it, the page, the exported test
and the issue. The last one needs an environment with vLLM 0.33.0 (`tox -e vllm` makes one) and is left as
it stands where there is none.
"""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests import subjects

GALLERY = Path(__file__).parent
ROOT = GALLERY.parent.parent
SHOWN = ("starts early", "loses chunks", "keeps a view", "answers too soon", "hands out views")
SCENARIO = ROOT / "fuzz" / "regressions" / "heads-zero-row-in-float16.json"


def poolproof(room: Path, *arguments: str) -> str:
    """What the command says, run in a room of the gallery."""
    command = [sys.executable, "-m", "fuzz", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(command, cwd=room, env=environment, stdout=subprocess.PIPE, text=True).stdout


def furnish(room: Path, told: str, finding: str, *subject: str) -> None:
    """Keep what was told, and export the finding."""
    (room / "terminal.txt").write_text(told)
    for form, name in (("pytest", "exported.py"), ("issue", "issue.md")):
        (room / name).write_text(poolproof(room, "export", finding, "--as", form, *subject))


def main() -> None:
    """Make every room anew."""
    for slip in SHOWN:
        room = GALLERY / slip.replace(" ", "-")
        shutil.rmtree(room, ignore_errors=True)
        room.mkdir()
        subjects.write(room, slip)
        report = ("--save", "findings", "--report", "html=report.html")
        told = poolproof(room, "fuzz", "--subject", "mine.py:factory", "--max-scenarios", "300", "--seed", "1", *report)
        furnish(room, told, str(min((room / "findings").glob("*.json")).relative_to(room)))
        # Where the campaign stands is of no use without the process.
        (room / "findings" / "campaign.state").unlink()
        shutil.rmtree(room / "__pycache__", ignore_errors=True)
    if find_spec("vllm") is None:
        return
    room = GALLERY / "vllm-0.33.0"
    room.mkdir(exist_ok=True)
    shutil.copy(SCENARIO, room / "scenario.json")
    told = poolproof(room, "replay", "scenario.json", "--subject", "vllm", "--report", "html=report.html")
    furnish(room, told, "scenario.json", "--subject", "vllm")


if __name__ == "__main__":
    main()
