from __future__ import annotations

import pytest

from autotune.scripts.effects import find_effects
from tests.scripts.reading import write_script

pytestmark = pytest.mark.usefixtures("workdir")


@pytest.mark.parametrize(
    "text",
    [
        "'''What it is for.'''",
        "BATCH = 64\nloader = DataLoader(TensorDataset(torch.arange(8)), BATCH)",
        "parser = argparse.ArgumentParser()\nparser.add_argument('--lr')",
        "torch.manual_seed(0)\ntorch.backends.cudnn.benchmark = True",
        "try:\n    import apex\nexcept ImportError:\n    apex = None",
        "def main():\n    train()\nif __name__ == '__main__':\n    main()",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from x import y",
        "names = []\nfor name in ('a', 'b'):\n    names.append(name)",
        "print('Using', torch.__version__)",
    ],
)
def test_a_script_that_only_makes_names_may_be_imported(text: str) -> None:
    assert find_effects(write_script(text)) == ()


@pytest.mark.parametrize(
    "text",
    [
        "main()",
        "for epoch in range(3):\n    train(epoch)",
        "while True:\n    step()",
        "trainer.fit(model)",
        "history = trainer.fit(model)",
        "result = autotune.tune(loader)",
        "with torch.no_grad():\n    evaluate(model)",
        "if torch.cuda.is_available():\n    main()",
        "torch.distributed.init_process_group('gloo')",
        "loss = model(x)\nloss.backward()",
        "raise SystemExit('use train.sh')",
    ],
)
def test_a_script_that_would_train_is_seen(text: str) -> None:
    (effect,) = find_effects(write_script(text))
    assert effect.line >= 5
    assert not effect.reads_arguments


@pytest.mark.parametrize(
    "text", ["args = parser.parse_args()", "args, _ = argparse.ArgumentParser().parse_known_args()"]
)
def test_a_script_that_reads_the_command_line_is_seen(text: str) -> None:
    assert [effect.reads_arguments for effect in find_effects(write_script(text))] == [True]
