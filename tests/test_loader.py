"""Importing a tree's pooling code on its own: what is its own, what stands in, what is refused."""

import sys
from pathlib import Path
from typing import Any

import pytest

from impl.config import HeadConfig, PoolerConfig, SubjectError
from impl.vllm import installed
from impl.vllm.loader import Tree, package_in
from tests.test_cli import poolproof

POOLER = "vllm/model_executor/layers/pooler/methods.py"


def tree(directory: Path, files: dict[str, str]) -> Tree:
    for name, text in {"vllm/__init__.py": "raise ImportError('the whole engine')\n", **files}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(package_in(directory))


def test_pooling_modules_are_the_trees_own_and_the_engine_is_not_imported(tmp_path: Path) -> None:
    made = tree(tmp_path, {POOLER: "from ..pooler.common import ONE\nclass AllPool:\n    one = ONE\n",
                           "vllm/model_executor/layers/pooler/common.py": "ONE = 1\n"})  # fmt: skip
    assert made["AllPool"].one == 1
    assert "vllm" not in sys.modules


def test_two_trees_in_one_process_keep_to_themselves_even_in_late_imports(tmp_path: Path) -> None:
    text = "class AllPool:\n    def number(self):\n        from vllm.v1.pool.late import N\n        return N\n"
    numbers = []
    for number in (1, 2):
        made = tree(tmp_path / str(number), {POOLER: text, "vllm/v1/pool/late.py": f"N = {number}\n"})
        numbers.append(made["AllPool"]().number())
    assert numbers == [1, 2]


def test_nothing_is_written_into_the_tree(tmp_path: Path) -> None:
    tree(tmp_path, {POOLER: "class AllPool: ...\n"})["AllPool"]
    assert not list(tmp_path.rglob("*.pyc"))


def test_a_class_is_found_wherever_it_moved(tmp_path: Path) -> None:
    made = tree(tmp_path, {"vllm/layers/aggregate.py": "class AllPool: ...\n"})
    assert made["AllPool"].__name__ == "AllPool"


def test_a_class_that_is_nowhere_is_named_with_where_it_was_looked_for(tmp_path: Path) -> None:
    made = tree(tmp_path, {POOLER: "class AllPool: ...\n", "vllm/tasks.py": ""})
    with pytest.raises(SubjectError, match=r"no class MaxPool under .*vllm: it was looked for in the 2 modules"):
        made["MaxPool"]


def test_a_class_is_taken_from_the_pooling_module_that_others_pass_it_on_from(tmp_path: Path) -> None:
    made = tree(tmp_path, {"vllm/config/pooler.py": "class PoolerConfig: ...\n",
                           POOLER: "from vllm.config import PoolerConfig\nclass AllPool:\n    config = PoolerConfig\n",
                           "vllm/config/__init__.py": "from .pooler import PoolerConfig\n"})  # fmt: skip
    assert made["AllPool"].config is made["PoolerConfig"]


def test_a_helper_is_cut_out_of_a_module_that_imports_the_engine(tmp_path: Path) -> None:
    helper = (
        "import torch\nimport zmq\nfrom vllm.engine import Engine\nEngine()\n"
        "def async_tensor_h2d(data, device):\n    return torch.tensor(data, pin_memory=PIN_MEMORY).to(device)\n"
    )
    made = tree(tmp_path, {POOLER: "from vllm.utils.torch_utils import async_tensor_h2d\nclass AllPool:\n"
                                   "    copy = staticmethod(async_tensor_h2d)\n",
                           "vllm/utils/torch_utils.py": helper})  # fmt: skip
    assert made["AllPool"].copy([1, 2], "cpu").tolist() == [1, 2]


USES = {
    "annotation": ("def pool(rows: Model | None) -> Model: ...\n", None),
    "isinstance": ("assert not isinstance(1, Model)\n", None),
    "call": ("Model()\n", r"uses vllm\.engine\.Model, which is not part of it and has no stand-in"),
    "condition": ("if Model: pass\n", r"uses vllm\.engine\.Model"),
    "attribute": ("Model.size\n", r"uses vllm\.engine\.Model"),
    "iteration": ("list(Model)\n", r"uses vllm\.engine\.Model"),
    "subclass": ("class Mine(Model): ...\nMine()\n", r"uses vllm\.engine\.Model"),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    "imports", ["from vllm.engine import Model\n", "import vllm.engine\nModel = vllm.engine.Model\n"]
)
def test_an_absent_name_serves_as_a_type_and_refuses_everything_else(tmp_path: Path, use: str, imports: str) -> None:
    text, message = USES[use]
    made = tree(tmp_path, {POOLER: f"{imports}{text}class AllPool: ...\n", "vllm/engine.py": "raise ImportError\n"})
    if message is None:
        assert made["AllPool"].__name__ == "AllPool"
    else:
        with pytest.raises(SubjectError, match=message):
            made["AllPool"]


def test_a_package_outside_vllm_is_absent_whether_or_not_it_is_installed(tmp_path: Path) -> None:
    made = tree(tmp_path, {POOLER: "from transformers import PretrainedConfig as P\nimport click\n"
                                   "class AllPool:\n    foreign = (P, click.Context)\n"})  # fmt: skip
    assert [kind.__module__ for kind in made["AllPool"].foreign] == ["impl.vllm.stubs", "impl.vllm.stubs"]


def test_poolers_see_the_config_they_are_made_for(tmp_path: Path) -> None:
    text = (
        "from vllm.config import get_current_vllm_config\nclass AllPool:\n    def __init__(self):\n"
        "        self.seen = get_current_vllm_config()\n"
    )
    made = tree(tmp_path, {POOLER: text})
    with made.config(PoolerConfig(async_scheduling=True, head=HeadConfig(logit_mean=0.5))):
        seen: Any = made["AllPool"]().seen
    assert seen.scheduler_config.async_scheduling
    assert seen.model_config.pooler_config.logit_bias == 0.5
    with pytest.raises(SubjectError, match="outside of a constructor"):
        made["AllPool"]()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (POOLER, "class AllPool: ...\n", "there is no class PoolingParams under"),
        ("vllm/pooling_params.py", "class PoolingParams: ...\nraise OSError('odd')\n",
         "OSError: odd (at "),
        ("vllm/pooling_params.py", "class PoolingParams: ...\ndef\n", "SyntaxError: invalid syntax"),
        ("vllm/pooling_params.py", "class PoolingParams: ...\nraise SystemExit(0)\n", "SystemExit"),
        ("vllm/pooling_params.py", "class PoolingParams: ...\nfrom .v1.pool.metadata import X\n",
         "imports vllm.v1.pool, but"),
    ],
)  # fmt: skip
def test_a_tree_that_can_not_be_used_ends_the_command_with_2_and_its_cause(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    tree(tmp_path, {name: text})
    result = poolproof("check", "--subject", f"vllm@{tmp_path}")
    assert result.exit_code == 2
    assert "could not run: " in result.stderr
    assert message in result.stderr


@pytest.mark.parametrize(("name", "message"), [("", "holds no vllm/"), ("missing", "is not a directory")])
def test_a_directory_without_the_package_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(SubjectError, match=message):
        package_in(tmp_path / name)


def test_a_checkout_and_the_package_itself_are_both_taken(tmp_path: Path) -> None:
    root = tree(tmp_path, {POOLER: ""}).sources.root
    assert package_in(root) == root


def test_a_process_has_room_for_one_whole_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(installed, "_put_first", [])
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    for name in ("one", "other"):
        (tmp_path / name / "vllm").mkdir(parents=True)
        (tmp_path / name / "vllm" / "__init__.py").write_text("")
    first = installed.Installed(tmp_path / "one")
    assert first.sources.root == tmp_path / "one" / "vllm"
    assert first.version == ""
    assert installed.Installed(tmp_path / "one").sources.root == first.sources.root
    for directory in (tmp_path / "other", None):
        with pytest.raises(SubjectError, match=r"room for one whole vLLM, and .*one/vllm is there"):
            installed.Installed(directory)
