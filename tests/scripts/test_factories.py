"""What is written of a script: each factory is run, and makes the loader that the script makes."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import UsageError
from autotune.scripts.finding import find_loaders
from autotune.scripts.slicing import slice_script
from autotune.scripts.writing import write_factory
from tests.scripts.reading import call_factory, make_factory, make_loader, write_script

pytestmark = pytest.mark.usefixtures("workdir")
OPTIONS = """
parser = argparse.ArgumentParser()
parser.add_argument("size")
parser.add_argument("-b", "--batch-size", type=int, default="4")
parser.add_argument("--workers", dest="jobs", default=0)
parser.add_argument("--drop", action="store_true")
parser.add_argument("--root")
"""
IN_A_FUNCTION = """
def main():
    args = parser.parse_args()
    torch.manual_seed(1)
    numbers = TensorDataset(torch.arange(args.size))
    print("nothing of this")
    model = torch.nn.Linear(3, 3)
    loader = DataLoader(numbers, args.batch_size, num_workers=args.jobs, drop_last=args.drop)
    for batch in loader:
        model(batch)
if __name__ == "__main__":
    main()
"""


def test_what_the_command_line_tells_becomes_arguments_with_the_defaults_of_the_parser() -> None:
    factory = make_factory(OPTIONS + IN_A_FUNCTION)
    assert [(one.name, one.default) for one in factory.parameters] == [
        ("size", None),
        ("batch_size", "4"),
        ("jobs", "0"),
        ("drop", "False"),
    ]
    assert factory.missing == ("size",)
    loader = call_factory(factory, size=10)
    assert (len(loader.dataset), loader.batch_size, loader.drop_last) == (10, 4, False)


def test_only_what_the_loader_needs_is_kept() -> None:
    text = make_factory(OPTIONS + IN_A_FUNCTION).text
    assert all(word not in text for word in ("argparse", "Linear", "manual_seed", "print", "model"))


def test_a_script_without_functions_is_copied_into_one() -> None:
    loader = make_loader(
        OPTIONS + "args = parser.parse_args()\nnumbers = TensorDataset(torch.arange(args.size))\n"
        "loader = DataLoader(numbers, batch_size=args.batch_size)\nfor batch in loader: pass\n",
        size=6,
    )
    assert (len(loader.dataset), loader.batch_size) == (6, 4)


def test_what_stands_under_the_guard_is_copied_into_one() -> None:
    loader = make_loader(
        """
        class Numbers(torch.utils.data.Dataset):
            def __len__(self): return SIZE
            def __getitem__(self, index): return index
        SIZE = 5
        if __name__ == "__main__":
            loader = DataLoader(Numbers(), batch_size=2)
        """.replace("Numbers()", "TensorDataset(torch.arange(5))")
    )
    assert len(loader) == 3


def test_a_script_that_may_be_imported_lends_its_classes() -> None:
    factory = make_factory(
        """
        class Own(TensorDataset): pass
        def main(n=3):
            loader = DataLoader(Own(torch.arange(n)))
            train(loader)
        """
    )
    assert "from train import Own" in factory.text
    assert "class Own" not in factory.text


def test_a_script_that_would_train_has_its_classes_copied() -> None:
    loader = make_loader(
        """
        def double(size):
            return 2 * size
        class Own(TensorDataset):
            size = double(3)
        def main(n=double(2)):
            loader = DataLoader(Own(torch.arange(n)))
            train(loader)
        main()
        """
    )
    assert (len(loader.dataset), type(loader.dataset).size) == (4, 6)


def test_a_function_may_call_what_is_defined_below_it() -> None:
    loader = make_loader(
        """
        def first(): return second()
        def second(): return TensorDataset(torch.arange(4))
        numbers = first()
        loader = DataLoader(numbers)
        train(loader)
        """
    )
    assert len(loader) == 4


def test_the_branch_of_several_processes_is_left_out_where_the_defaults_tell_that_there_is_one() -> None:
    text = """
        parser = argparse.ArgumentParser()
        parser.add_argument("--world-size", default=1, type=int)
        parser.add_argument("--small", action="store_true")
        def main():
            args = parser.parse_args()
            args.distributed = args.world_size > 1
            worker(args)
        def worker(args):
            numbers = TensorDataset(torch.arange(4 if args.small else 8))
            if args.distributed:
                sampler = torch.utils.data.distributed.DistributedSampler(numbers)
            else:
                sampler = None
            loader = DataLoader(numbers, shuffle=sampler is None, sampler=sampler)
            train(loader)
        """
    factory = make_factory(text)
    assert "Distributed" not in factory.text.partition('"""\n')[2]
    assert any("`args.distributed` is False in one process" in note for note in factory.notes)
    assert (len(call_factory(factory)), len(call_factory(factory, small=True))) == (8, 4)


def test_other_branches_are_kept_with_their_switch() -> None:
    text = (
        OPTIONS
        + "args = parser.parse_args()\n"
        + (
            "if args.root == 'a':\n    n = 1\nelif args.root == 'b':\n    n = 2\nelse:\n    n = 3\n"
            "loader = DataLoader(TensorDataset(torch.arange(n)))\n"
        )
    )
    factory = make_factory(text)
    assert [len(call_factory(factory, root=root)) for root in ("a", "b", None)] == [1, 2, 3]
    assert factory.left_open == ("root",)


def test_what_changes_a_dataset_after_it_was_made_is_kept() -> None:
    loader = make_loader(
        """
        def main():
            sizes = []
            for size in (1, 2, 3):
                sizes.append(size)
            given = {"batch_size": 2}
            given.update(drop_last=True)
            numbers = TensorDataset(torch.arange(sum(sizes)))
            numbers.name = "six"
            given["num_workers"] = 0
            loader = DataLoader(numbers, **given)
            train(loader)
        """
    )
    assert (len(loader.dataset), loader.batch_size, loader.drop_last, loader.dataset.name) == (6, 2, True, "six")


def test_of_a_loop_around_the_loader_the_first_round_is_taken_and_said() -> None:
    factory = make_factory(
        """
        def main():
            for fold, size in enumerate((3, 4)):
                loader = DataLoader(TensorDataset(torch.arange(size)))
                train(loader)
        """
    )
    assert len(call_factory(factory)) == 3
    assert "the first round is taken" in factory.notes[0]


def test_a_method_is_followed_to_where_its_object_is_set_up() -> None:
    loader = make_loader(
        """
        class Trainer:
            def __init__(self, size, batch_size=2):
                super().__init__()
                self.batch_size = batch_size
                self.model = torch.nn.Linear(3, 3)
                self.numbers = TensorDataset(torch.arange(size))
            def train(self):
                loader = DataLoader(self.numbers, batch_size=self.batch_size)
                for batch in loader: self.model(batch)
        """,
        size=6,
    )
    assert (len(loader.dataset), loader.batch_size) == (6, 2)


def test_options_that_go_on_as_a_whole_are_put_together_again() -> None:
    loader = make_loader(
        OPTIONS
        + """
def build(opt):
    return TensorDataset(torch.arange(opt.size))
args = parser.parse_args()
loader = DataLoader(build(args), batch_size=args.batch_size)
for batch in loader: pass
""",
        size=5,
    )
    assert (len(loader.dataset), loader.batch_size) == (5, 4)


def test_several_loaders_of_a_comprehension_are_made_together() -> None:
    factory = make_factory(
        """
        def main():
            data = {name: TensorDataset(torch.arange(3)) for name in ("train", "val")}
            loaders = {name: DataLoader(data[name]) for name in ("train", "val")}
            train(loaders)
        """
    )
    assert factory.makes_several
    assert set(call_factory(factory)) == {"train", "val"}


def test_a_class_of_settings_tells_its_defaults() -> None:
    loader = make_loader(
        """
        from dataclasses import dataclass
        import tyro
        @dataclass
        class Config:
            size: int = 7
            batch: int = 3
        def main():
            cfg = tyro.cli(Config)
            loader = DataLoader(TensorDataset(torch.arange(cfg.size)), batch_size=cfg.batch)
            train(loader)
        """
    )
    assert (len(loader.dataset), loader.batch_size) == (7, 3)


def test_options_of_click_tell_their_defaults() -> None:
    factory = make_factory(
        """
        import click
        @click.command()
        @click.option("--size", default=6)
        @click.argument("root")
        def main(size, root):
            loader = DataLoader(TensorDataset(torch.arange(size), torch.full((size,), len(root))))
            train(loader)
        """
    )
    assert [(one.name, one.default) for one in factory.parameters] == [("root", None), ("size", "6")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "def main():\n    data = TensorDataset(torch.arange(3))\n"
            "    s = torch.utils.data.distributed.DistributedSampler(data)\n    loader = DataLoader(data, sampler=s)\n",
            r"line 7: a DistributedSampler is made whatever the options say.*--ranks",
        ),
        ("def main():\n    loader = DataLoader(nowhere)\n    t()", r"line 6: .* needs nowhere"),
        (
            "class A:\n    def data(self): return 1\n    def f(self):\n        self.loader = DataLoader(self.data())\n",
            r"by a method of A that needs the whole object",
        ),
    ],
)
def test_what_cannot_be_copied_is_named_with_its_line(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_factory(text)


def test_text_that_spans_lines_is_kept_to_the_letter() -> None:
    loader = make_loader(
        'def main():\n    words = """a\n  b\n"""\n    loader = DataLoader(TensorDataset(torch.arange(len(words))))'
    )
    assert len(loader) == len("a\n  b\n")


PIECES = st.sampled_from(
    [
        "args = parser.parse_args()",
        "data = TensorDataset(torch.arange(args.n))",
        "if args.flag:\n    data = None",
        "for i in range(3):\n    data = i\n    more = [data for data in more]",
        "def f(x=data):\n    return DataLoader(x)",
        "with open('x') as file:\n    more = file",
        "try:\n    import a.b\nexcept ImportError:\n    a = None",
        "class C(DataLoader):\n    y = data\n    def g(self):\n        self.l = DataLoader(self.x, z)",
        "loader = DataLoader(data, **{'a': [more for _ in data]})",
        "more, *data = data, [1]",
        "data['a'].b = lambda: more",
        "loader = [C(f'{args.n}', data[i]) for i in more]",
        "match data:\n    case [1, *more]:\n        data = more",
        "async def h():\n    return DataLoader(await data)",
        "while data:\n    data -= 1",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=8))
def test_any_script_gives_a_factory_that_is_python_or_one_sentence(pieces: list[str]) -> None:
    script = write_script("\n".join(pieces), Path("any.py"))
    for call in find_loaders(script):
        with contextlib.suppress(UsageError):
            compile(write_factory(slice_script(script, call)).text, "factory", "exec")


NOTEBOOK = """
import os
SIZE = int(os.environ.get("DLTUNE_TEST_SIZE", "7"))

class Numbers(torch.utils.data.Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.size + index

class Data(Base):
    def __init__(self, size: int = SIZE, batch_size: int = 2):
        super().__init__()
        self.save_hyperparameters()
        self.size = size
        self.batch_size = batch_size

    def setup(self, stage=None):
        if stage == "fit" or stage is None:
            self.numbers = Numbers(self.size)

    def train_dataloader(self):
        return DataLoader(self.numbers, batch_size=self.batch_size)

trainer.fit(Data())
"""


def test_a_class_that_is_copied_beside_a_method_keeps_what_belongs_to_its_own_objects() -> None:
    loader = make_loader(NOTEBOOK, size=5)
    assert [batch.tolist() for batch in loader] == [[5, 6], [7, 8], [9]]


def test_a_default_that_the_script_works_out_is_worked_out_before_the_factory_is_defined() -> None:
    assert len(make_loader(NOTEBOOK).dataset) == 7


def test_what_one_branch_sets_up_need_not_be_given() -> None:
    assert make_factory(NOTEBOOK).missing == ()
