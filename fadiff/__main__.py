"""`python -m fadiff`: the `fadiff` command."""

import sys

from fadiff.cli import main

if __name__ == "__main__":
    sys.exit(main())
