"""vLLM as a subject: a release, a source tree, or what is installed here, each with its own classes.

SPECs: `vllm==0.33.0`, fetched once and then offline; `vllm@DIR`, a checkout or an unpacked wheel;
`vllm`, the installed one with everything that it imports. Only the engine around the pooling layer is
the harness; with `vllm-v1` and `vllm-v2`, followed by nothing, `==X.Y.Z` or `@DIR`, the engine is vLLM's too,
and what it imports must be installed.
"""

from functools import partial
from pathlib import Path
from typing import Final

from impl.config import Subject, SubjectError
from impl.vllm import engine
from impl.vllm.adapter import LateInteraction, verify
from impl.vllm.fetch import release
from impl.vllm.installed import Installed
from impl.vllm.layer import SingleFile, layer
from impl.vllm.loader import Tree, package_in

ENGINES: Final = ("vllm-v1", "vllm-v2")


def names_vllm(spec: str) -> bool:
    """Whether a SPEC names a vLLM."""
    return any(spec == name or spec.startswith((f"{name}==", f"{name}@")) for name in ("vllm", *ENGINES))


def subject(spec: str) -> Subject:
    """The vLLM that a SPEC names, as a subject.

    Raises:
        SubjectError: it can't be had, or has no pooling layer that is known.
    """
    if spec.startswith(ENGINES):
        return engine.subject(spec)
    library: Installed | Tree
    if spec == "vllm":
        library = Installed()
        name, about, version = f"vllm {library.version}", "the installed release, unchanged", library.version
    elif spec.startswith("vllm=="):
        version = spec.removeprefix("vllm==")
        library = Tree(package_in(release(version)))
        name, about = spec, "a release's pooling layer on its own"
    else:
        library = Tree(package_in(Path(spec.removeprefix("vllm@")).expanduser()))
        name, about, version = spec, f"the pooling layer of {library.sources.root} on its own", ""
    found = layer(library)
    if isinstance(found, SingleFile) and isinstance(library, Installed):
        raise SubjectError(
            f"the pooling layer of the installed vLLM {library.version} can't be made without a model; "
            f"run it as --subject vllm=={library.version}"
        )
    return Subject(
        name=name,
        build=found.build,
        supports=frozenset(("ALL", "STEP", "CLS", "LAST", "MEAN")),
        rows=(found.rows(),),
        levels=("method", "pooler"),
        api=found.api,
        about=about,
        spec=spec,
        product="vllm",
        version=version,
        lacks=found.lacks(),
        verify=verify,
        late_interaction=partial(LateInteraction, library),
    )
