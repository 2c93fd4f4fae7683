"""``python -m gpujoin``: the same as the ``gpujoin`` command; with a program's path, that program accelerated."""

import sys

from gpujoin.cli import main
from gpujoin.cli.script import is_script, run_script

if __name__ == "__main__":
    if len(sys.argv) > 1 and is_script(sys.argv[1]):
        sys.exit(run_script(sys.argv[1], sys.argv[2:]))
    sys.exit(main())
