"""The gallery in docs: what stands there is what the commands give, as far as it has a verdict."""

import sys
from pathlib import Path

import pytest

from fuzz.findings import read
from tests import subjects
from tests.test_export import passes

GALLERY = Path("docs/gallery")
ROOMS = sorted(path.parent.name for path in GALLERY.glob("*/mine.py"))


def test_there_are_five_rooms_and_one_of_vllm() -> None:
    assert len(ROOMS) == 5
    assert (GALLERY / "vllm-0.33.0" / "exported.py").exists()


@pytest.mark.parametrize("room", ROOMS)
def test_the_exported_test_is_red_beside_its_pooler_and_green_beside_a_right_one(
    room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (GALLERY / room / "exported.py").read_text()
    for pooler, green in (((GALLERY / room / "mine.py").read_text(), False), (subjects.RIGHT, True)):
        where = tmp_path / str(green)
        where.mkdir()
        (where / "mine.py").write_text(pooler)
        monkeypatch.syspath_prepend(where)
        monkeypatch.delitem(sys.modules, "mine", raising=False)
        assert passes(source) is green
    monkeypatch.delitem(sys.modules, "mine", raising=False)


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_tells_its_finding_in_every_form(room: str) -> None:
    finding = read(min((GALLERY / room / "findings").iterdir()))[1]
    assert finding is not None
    for form in ("terminal.txt", "report.html", "issue.md"):
        assert finding.contract in (GALLERY / room / form).read_text()
