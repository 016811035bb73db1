"""Fetching a release: once, whole or not at all, and with a reason where it can't be done. No network."""

import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from impl.config import SubjectError
from impl.vllm import fetch
from tests.test_cli import poolproof

FILES = {
    "vllm/tasks.py": "TASKS = ()\n",
    "vllm/v1/pool/__init__.py": "",
    "vllm/utils/__init__.py": "",
    "vllm/model_executor/layers/pooler.py": "class AllPool: ...\n",
    "vllm/model_executor/layers/linear.py": "raise RuntimeError\n",
    "vllm/_C.abi3.so": "binary",
    "vllm/../pool/outside.py": "raise RuntimeError\n",
}
Pip = Callable[[Path], SimpleNamespace]


def wheel(directory: Path) -> Path:
    path = directory / "vllm-1.2.3-cp38-abi3-manylinux1_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    return path


def delivers(directory: Path) -> SimpleNamespace:
    wheel(directory)
    return SimpleNamespace(returncode=0, stderr="")


def delivers_a_torn_wheel(directory: Path) -> SimpleNamespace:
    path = wheel(directory)
    path.write_bytes(path.read_bytes()[:-40])
    return SimpleNamespace(returncode=0, stderr="")


def delivers_a_flipped_byte(directory: Path) -> SimpleNamespace:
    path = wheel(directory)
    path.write_bytes(path.read_bytes().replace(b"class AllPool", b"class AllPooi"))
    return SimpleNamespace(returncode=0, stderr="")


def fails(stderr: str) -> Pip:
    return lambda directory: SimpleNamespace(returncode=1, stderr=stderr)


def is_interrupted(directory: Path) -> SimpleNamespace:
    raise KeyboardInterrupt


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Pip], list[list[str]]]:
    """Puts another pip in place, with an empty cache; the list gathers its command lines."""
    monkeypatch.setenv("POOLPROOF_CACHE", str(tmp_path / "cache"))
    calls: list[list[str]] = []

    def use(answer: Pip) -> list[list[str]]:
        def run(command: list[str], **_: Any) -> SimpleNamespace:
            calls.append(command)
            return answer(Path(command[command.index("--dest") + 1]))

        monkeypatch.setattr(subprocess, "run", run)
        return calls

    return use


def cached(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache").iterdir())


def test_only_what_pooling_needs_is_kept_and_nothing_outside_the_directory(
    pip: Callable[[Pip], list[list[str]]], tmp_path: Path
) -> None:
    pip(delivers)
    kept = fetch.release("1.2.3")
    files = sorted(str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file())
    assert files == [
        "poolproof.json",
        "vllm/model_executor/layers/pooler.py",
        "vllm/tasks.py",
        "vllm/utils/__init__.py",
        "vllm/v1/pool/__init__.py",
    ]
    assert cached(tmp_path) == ["vllm-1.2.3"]


def test_a_release_is_fetched_once(pip: Callable[[Pip], list[list[str]]]) -> None:
    calls = pip(delivers)
    assert fetch.release("1.2.3") == fetch.release("1.2.3")
    assert len(calls) == 1
    assert "vllm==1.2.3" in calls[0]
    assert "--no-deps" in calls[0]


def test_constraints_on_what_is_installed_do_not_bind_what_is_taken_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, str]] = []

    def run(command: list[str], env: dict[str, str], **_: Any) -> SimpleNamespace:
        given.append(env)
        return delivers(Path(command[command.index("--dest") + 1]))

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("POOLPROOF_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_CONSTRAINT", "requirements.txt")
    monkeypatch.setenv("PIP_INDEX_URL", "https://example.org/simple")
    fetch.release("1.2.3")
    assert "PIP_CONSTRAINT" not in given[0]
    assert given[0]["PIP_INDEX_URL"] == "https://example.org/simple"


def test_what_an_older_poolproof_kept_is_fetched_again(
    pip: Callable[[Pip], list[list[str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = pip(delivers)
    fetch.release("1.2.3")
    monkeypatch.setattr(fetch, "FORMAT", fetch.FORMAT + 1)
    fetch.release("1.2.3")
    fetch.release("1.2.3")
    assert len(calls) == 2
    assert cached(tmp_path) == ["vllm-1.2.3"]


def test_a_changed_file_is_refused(pip: Callable[[Pip], list[list[str]]]) -> None:
    pip(delivers)
    changed = fetch.release("1.2.3") / "vllm" / "tasks.py"
    changed.write_text("TASKS = (1,)\n")
    with pytest.raises(SubjectError, match=r"tasks\.py is not as it was fetched; delete .*vllm-1\.2\.3"):
        fetch.release("1.2.3")


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_text("{")])
def test_a_damaged_manifest_is_refused(pip: Callable[[Pip], list[list[str]]], damage: Callable[[Path], object]) -> None:
    pip(delivers)
    damage(fetch.release("1.2.3") / fetch.MANIFEST)
    with pytest.raises(SubjectError, match="is damaged"):
        fetch.release("1.2.3")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            fails("ERROR: Could not find a version that satisfies the requirement vllm==1.2.3 (from versions: "
                  "0.1, 0.2, 0.3, 0.4)\nERROR: No matching distribution found for vllm==1.2.3\n"),
            r"there is no vLLM 1\.2\.3 where pip looks, the newest being 0\.2, 0\.3, 0\.4; .*vllm@DIR",
        ),
        (
            fails("WARNING: Retrying after connection broken by 'NewConnectionError(no route)': /simple/vllm/\n"
                  "ERROR: Could not find a version that satisfies the requirement (from versions: none)\n"
                  "ERROR: No matching distribution found for vllm==1.2.3\n"),
            r"not in the cache and pip can't download it \(NewConnectionError\(no route\)\); .*vllm@DIR",
        ),
        (fails("/usr/bin/python: No module named pip\n"), r"\(/usr/bin/python: No module named pip\)"),
        (fails(""), "it said nothing"),
        (delivers_a_torn_wheel, r"manylinux1_x86_64\.whl came damaged .*try again"),
        (delivers_a_flipped_byte, "came damaged .*Bad CRC-32"),
    ],
)  # fmt: skip
def test_a_failure_says_why_and_leaves_nothing_behind(
    pip: Callable[[Pip], list[list[str]]], tmp_path: Path, answer: Pip, message: str
) -> None:
    pip(answer)
    with pytest.raises(SubjectError, match=message):
        fetch.release("1.2.3")
    assert cached(tmp_path) == []


def test_an_interrupted_fetch_leaves_nothing_behind(pip: Callable[[Pip], list[list[str]]], tmp_path: Path) -> None:
    pip(is_interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch.release("1.2.3")
    assert cached(tmp_path) == []


def test_a_wheel_without_a_pooling_layer_is_refused(
    pip: Callable[[Pip], list[list[str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tests.test_fetch.FILES", {"vllm/engine.py": ""})
    pip(delivers)
    with pytest.raises(SubjectError, match="holds no pooling layer"):
        fetch.release("1.2.3")
    assert cached(tmp_path) == []


@pytest.mark.parametrize("version", ["", "latest", "0.33", "../x", "1.2.3; rm"])
def test_only_the_number_of_a_release_is_taken(pip: Callable[[Pip], list[list[str]]], version: str) -> None:
    calls = pip(delivers)
    if version == "0.33":
        assert fetch.release(version).name == "vllm-0.33"
    else:
        with pytest.raises(SubjectError, match="is not the number of a release"):
            fetch.release(version)
        assert not calls


def test_a_cache_that_is_no_directory_is_told(
    pip: Callable[[Pip], list[list[str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pip(delivers)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POOLPROOF_CACHE", str(tmp_path / "file"))
    with pytest.raises(SubjectError, match=r"the cache can't be used: .*set POOLPROOF_CACHE"):
        fetch.release("1.2.3")


def test_the_command_ends_with_2_where_a_release_can_not_be_had(pip: Callable[[Pip], list[list[str]]]) -> None:
    pip(fails("ERROR: no network\n"))
    result = poolproof("check", "--subject", "vllm==1.2.3")
    assert result.exit_code == 2
    assert "could not run: vLLM 1.2.3 is not in the cache and pip can't download it (no network)" in result.stderr
