"""`python -m autotune` is `dltune`."""

import signal


def main() -> None:
    """Run the command line; Ctrl-C ends the process without a message until it can print one."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from autotune.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
