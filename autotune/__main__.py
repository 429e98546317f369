"""`python -m autotune` is `dltune`."""

from autotune.cli import main

main()
