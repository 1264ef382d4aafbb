"""The command ``rallypoint``."""

import signal
import sys

from rallypoint._rallypoint import run_command


def main() -> int:
    """Runs the command with the arguments of this process."""
    # Python's own handler would wait for Python code to run, which does not while the command does.
    # One that is to be ignored stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Scripts are run by the Python that this is installed in, as torchrun runs them, and not by one on the path.
    return run_command(["rallypoint", *sys.argv[1:]], sys.executable or None)


if __name__ == "__main__":
    sys.exit(main())
