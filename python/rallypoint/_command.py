"""The command ``rallypoint``."""

import signal
import sys

from rallypoint._rallypoint import run_command


def main() -> int:
    """Runs the command with the arguments of this process."""
    # Python's own handler would wait for Python code to run, which does not while the command does.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return run_command(["rallypoint", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
