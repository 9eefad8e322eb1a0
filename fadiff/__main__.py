"""`python -m fadiff`: the `fadiff` command."""

import gc
import os
import sys

_YOUNG_OBJECTS = 50_000
"""That Python's collector waits for: a search makes millions and few circles (5 % of a compile's time)."""


def run() -> int:
    """Run the command line; Ctrl-C while it is still being loaded is an interrupt as any other."""
    gc.set_threshold(_YOUNG_OBJECTS)
    # (of many small products threads wait for each other longer than they compute, and sums depend on them)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from fadiff.cli import main
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    return main()


if __name__ == "__main__":
    sys.exit(run())
