"""`python -m autotune` is `dltune`."""

from autotune.cli.main import main

main()
