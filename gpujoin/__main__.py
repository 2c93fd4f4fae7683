"""``python -m gpujoin``: the same as the ``gpujoin`` command."""

import sys

from gpujoin.cli import main

if __name__ == "__main__":
    sys.exit(main())
