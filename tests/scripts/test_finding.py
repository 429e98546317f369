from __future__ import annotations

import pytest

from autotune.errors import UsageError
from autotune.scripts.finding import choose_loader, find_loaders
from tests.scripts.reading import write_script

pytestmark = pytest.mark.usefixtures("workdir")


@pytest.mark.parametrize(
    "text",
    [
        "loader = DataLoader(data)",
        "loader = torch.utils.data.DataLoader(data)",
        "from torch.utils.data import DataLoader as DL\nloader = DL(data)",
        "import torch.utils.data as td\nloader = td.DataLoader(data)",
        "from torchdata.stateful_dataloader import StatefulDataLoader\nloader = StatefulDataLoader(data)",
        "class Mine(DataLoader): pass\nloader = Mine(data)",
        "from functools import partial\nmake = partial(DataLoader, shuffle=True)\nloader = make(data)",
        "Loader = DataLoader\nloader = Loader(data)",
        "from timm.data import create_loader\nloader = create_loader(data)",
        "loader: DataLoader = DataLoader(data)",
        "loader, other = DataLoader(data), 3",
        "if (loader := DataLoader(data)): pass",
        "loaders = {'loader': DataLoader(data)}",
        "def loader():\n    return DataLoader(data)",
        "class A:\n    def f(self):\n        self.loader = DataLoader(data)",
    ],
)
def test_a_loader_is_found_under_whatever_name_it_is_made(text: str) -> None:
    calls = find_loaders(write_script(text))
    assert [call.target for call in calls if call.callee != "partial"] == ["loader"]


def test_a_comprehension_makes_several_at_once() -> None:
    (call,) = find_loaders(write_script("loaders = {name: DataLoader(data[name]) for name in data}"))
    assert call.is_several
    assert call.target == "loaders"


def test_what_only_looks_like_one_is_passed_over() -> None:
    script = write_script("import yaml\nyaml.load(text, Loader=yaml.Loader)\nisinstance(x, DataLoader)\nBaseLoader(x)")
    assert find_loaders(script) == ()


TWO = "train_loader = DataLoader(a)\nval_loader = DataLoader(b)\n"


def test_of_several_the_only_one_of_the_training_is_chosen() -> None:
    call = choose_loader(write_script(TWO))
    assert call is not None
    assert call.target == "train_loader"


def test_a_line_chooses_another() -> None:
    script = write_script(TWO)
    call = choose_loader(script, find_loaders(script)[1].line)
    assert call is not None
    assert call.target == "val_loader"


def test_none_is_chosen_where_the_names_do_not_tell() -> None:
    assert choose_loader(write_script("a = DataLoader(x)\nb = DataLoader(y)")) is None


def test_a_line_without_a_loader_is_answered_with_those_that_have_one() -> None:
    with pytest.raises(
        UsageError, match=r"line 1: no DataLoader is made there, but on line 5 \(train_loader\), line 6"
    ):
        choose_loader(write_script(TWO), 1)


def test_a_script_without_a_loader_is_told_of_functions_that_make_one() -> None:
    with pytest.raises(UsageError, match=r"makes no DataLoader.*dltune --loader FILE\.py:make_loader"):
        choose_loader(write_script("def get_batch(): return torch.zeros(3)"))
