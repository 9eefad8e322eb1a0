"""`python -m fadiff`: the `fadiff` command."""

import sys


def run() -> int:
    """Run the command line; Ctrl-C while it is still being loaded is an interrupt as any other."""
    try:
        from fadiff.cli import main
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    return main()


if __name__ == "__main__":
    sys.exit(run())
