"""Fetches the pooling sources of a vLLM release once, into a cache from which it works offline.

The wheel comes by the user's own pip with the user's own configuration. Of its hundreds of megabytes
only the few files that `impl.vllm.stubs` may need are kept, or for an engine the Python sources, whole or
not at all, each with its hash.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import platformdirs

from impl.config import SubjectError
from impl.vllm.stubs import is_kept

VERSION: Final = re.compile(r"\d+(\.\d+)+((a|b|rc|\.post|\.dev)\d+)*")
MANIFEST: Final = "poolproof.json"
FORMAT: Final = 2
"""To be raised when `is_kept` keeps more: what an older poolproof fetched is then fetched again."""

# The sources are the same for every platform, so each gets the same wheel.
_TARGET: Final = (
    "--python-version=3.12",
    "--implementation=cp",
    "--platform=manylinux1_x86_64",
    *(f"--platform=manylinux_2_{minor}_x86_64" for minor in range(17, 41)),
)
_OTHERWISE: Final = "or unpack a wheel or check vLLM out yourself and give --subject vllm@DIR"


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was kept of which wheel: paths with their SHA-256."""

    format: int
    wheel: str
    files: dict[str, str]


def cache() -> Path:
    """Where releases are kept: `$POOLPROOF_CACHE`, or the user's cache directory."""
    return Path(os.environ.get("POOLPROOF_CACHE") or platformdirs.user_cache_path("poolproof"))


def release(version: str) -> Path:
    """The directory with a release's pooling sources, fetched if it is not in the cache.

    Raises:
        SubjectError: it can't be fetched, or what is in the cache is not what was fetched.
    """
    return _release(version, f"vllm-{version}", is_kept)


def whole_release(version: str) -> Path:
    """The same with all of a release's Python sources: some 50 MB, and nothing compiled.

    Raises:
        SubjectError: see `release`.
    """
    return _release(version, f"vllm-{version}-whole", _is_python)


def _is_python(path: str) -> bool:
    """Whether a file of a wheel is source, data that source reads, or says which release it is."""
    return path.endswith((".py", ".json", ".jinja", ".dist-info/METADATA"))


def _release(version: str, name: str, is_kept: Callable[[str], bool]) -> Path:
    if not VERSION.fullmatch(version):
        raise SubjectError(f"{version!r} is not the number of a release; say for example vllm==0.33.0")
    kept = cache() / name
    try:
        if not _is_whole(kept):
            _fetch(version, kept, is_kept)
    except OSError as error:
        raise SubjectError(f"the cache can't be used: {error}; set POOLPROOF_CACHE to another directory") from error
    return kept


def _is_whole(kept: Path) -> bool:
    """Whether a release is there as it was fetched; not if another poolproof kept other files.

    Raises:
        SubjectError: it was changed or damaged since.
    """
    if not kept.exists():
        return False
    try:
        manifest = msgspec.json.decode((kept / MANIFEST).read_bytes(), type=Manifest)
        changed = [path for path, digest in manifest.files.items() if _digest((kept / path).read_bytes()) != digest]
    except (OSError, msgspec.DecodeError) as error:
        raise SubjectError(f"{kept} is damaged ({error}); delete it, and the release is fetched again") from None
    if changed:
        raise SubjectError(
            f"{kept / changed[0]} is not as it was fetched; delete {kept}, and the release is fetched again"
        )
    return manifest.format == FORMAT


def _fetch(version: str, kept: Path, is_kept: Callable[[str], bool]) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".fetching-") as directory:
        wheel = _download(version, Path(directory))
        new = Path(directory, "new")
        _unpack(wheel, new, is_kept)
        old = Path(directory, "old")
        if kept.exists():
            kept.rename(old)
        try:
            new.rename(kept)
        except OSError:
            # Another process was faster, which comes to the same.
            if not _is_whole(kept):
                raise


def _download(version: str, directory: Path) -> Path:
    """The release's wheel, by pip."""
    told = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    command = [
        sys.executable, "-m", "pip", "download", f"vllm=={version}", "--no-deps", "--only-binary=:all:",
        *_TARGET, "--dest", str(directory), "--no-input", "--disable-pip-version-check",
    ]  # fmt: skip
    # Constraints are on what is installed; this wheel is taken apart.
    environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    done = subprocess.run(command, stdout=told, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    wheels = list(directory.glob("vllm-*.whl"))
    if done.returncode or not wheels:
        raise SubjectError(f"{_why(version, done.stderr)}, {_OTHERWISE}")
    return wheels[0]


def _why(version: str, stderr: str) -> str:
    """What pip's error comes to, and what to do."""
    offered = re.search(r"\(from versions: ([^)]*)\)", stderr)
    if offered and offered[1] not in ("", "none"):
        newest = ", ".join(offered[1].split(", ")[-3:])
        return f"there is no vLLM {version} where pip looks, the newest being {newest}; give another release"
    broken = re.search(r"connection broken by '(.*)'", stderr)
    lines = [broken[1]] if broken else stderr.split("ERROR: ")[-1].strip().splitlines()
    cause = lines[-1][:300] if lines else "it said nothing"
    return f"vLLM {version} is not in the cache and pip can't download it ({cause}); see that pip works here"


def _unpack(wheel: Path, directory: Path, is_kept: Callable[[str], bool]) -> None:
    """Keep the files that may be needed, and a manifest of them."""
    files = {}
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in filter(is_kept, archive.namelist()):
                content = archive.read(name)
                files[name] = _digest(content)
                path = directory / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SubjectError(f"{wheel.name} came damaged ({error}); try again, {_OTHERWISE}") from None
    if not files:
        raise SubjectError(f"{wheel.name} holds no pooling layer; give another release, {_OTHERWISE}")
    manifest = Manifest(FORMAT, wheel.name, files)
    (directory / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
