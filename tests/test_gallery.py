"""The gallery in docs: what stands there is what the commands give, as far as it has a verdict."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from docs.gallery.make import RELEASE, ROOMS, can_be_made
from fuzz.explain import explain
from fuzz.findings import Finding, read
from impl.vllm.fetch import release as fetched
from impl.vllm.loader import Tree, package_in
from impl.vllm.stubs import current_config
from tests import subjects
from tests.releases import release
from tests.test_export import passes

GALLERY = Path("docs/gallery")
POOLERS = [name for name in ROOMS if not name.startswith("vllm")]


def test_there_are_five_rooms_of_poolers_one_of_a_release_and_one_of_an_engine() -> None:
    assert len(POOLERS) == 5
    assert {path.parent.name for path in GALLERY.glob("*/terminal.txt")} == set(ROOMS)
    assert sorted(set(ROOMS) - set(POOLERS)) == ["vllm-0.20.2", "vllm-v1-0.33.0"]


@pytest.mark.parametrize("room", POOLERS)
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


@pytest.mark.releases
@pytest.mark.parametrize(("version", "green"), [(RELEASE, False), ("0.33.0", True)])
def test_the_exported_test_is_red_on_the_faulty_release_and_green_on_the_mended_one(
    version: str, green: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(version)
    source = (GALLERY / f"vllm-{RELEASE}" / "exported.py").read_text()
    tree = Tree(package_in(fetched(version)))
    for name in re.findall(r"^from (vllm\.\S+) import", source, re.MULTILINE):
        monkeypatch.setitem(sys.modules, name, config_module() if name == "vllm.config" else tree.load(name))
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
    assert passes(source) is green


def config_module() -> ModuleType:
    """The part of `vllm.config` that an exported test uses, for a pooling layer without the rest of vLLM."""

    @contextmanager
    def set_current_vllm_config(config: SimpleNamespace) -> Iterator[None]:
        with current_config(SimpleNamespace(head=SimpleNamespace(head_dtype=None, projector=None, logit_mean=None),
                                            **vars(config.scheduler_config))):  # type: ignore[arg-type]  # fmt: skip
            yield

    module = ModuleType("vllm.config")
    module.__dict__.update(
        DeviceConfig=SimpleNamespace,
        VllmConfig=lambda device_config: SimpleNamespace(scheduler_config=SimpleNamespace()),
        set_current_vllm_config=set_current_vllm_config,
    )
    return module


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_tells_each_of_its_findings(room: str) -> None:
    findings = kept(GALLERY / room)
    assert findings
    for finding in findings:
        for form in ("terminal.txt", "report.html"):
            assert finding.contract in (GALLERY / room / form).read_text()
    issue = (GALLERY / room / "issue.md").read_text()
    assert any(explain(finding).headline in issue for finding in findings)


@pytest.mark.parametrize("room", ["vllm-0.20.2", "vllm-v1-0.33.0"])
def test_what_is_shown_of_vllm_is_published(room: str) -> None:
    issue = (GALLERY / room / "issue.md").read_text()
    assert re.search(r"^\*\*Known\.\*\* .* https://github.com/vllm-project/vllm/pull/\d+\.$", issue, re.MULTILINE)


@pytest.mark.parametrize("room", [POOLERS[0], pytest.param(f"vllm-{RELEASE}", marks=pytest.mark.releases)])
def test_what_stands_there_is_what_the_commands_give(room: str, tmp_path: Path) -> None:
    if room not in POOLERS:
        release(RELEASE)
    assert can_be_made(room)
    ROOMS[room](tmp_path)
    names = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.*"))
    assert names == sorted(path.relative_to(GALLERY / room) for path in (GALLERY / room).rglob("*.*"))
    for name in names:
        assert without_times((tmp_path / name).read_text()) == without_times((GALLERY / room / name).read_text()), name


def without_times(text: str) -> str:
    """What is the same on every machine: no rates, and no versions but that of the subject."""
    text = re.sub(r"scenarios in .* s \(.*/s\)", "", text)
    text = re.sub(r"(<dt>(scenarios a second|seconds)</dt><dd>)[\d.,]+", r"\1", text)
    return re.sub(r"^- (Python|platform|torch|numpy|vllm|poolproof) .*\n", "", text, flags=re.MULTILINE)


def kept(room: Path) -> list[Finding]:
    found = [read(path)[1] for path in sorted((room / "findings").glob("*.json"))]
    return [finding for finding in found if finding is not None]
