"""The command line: ``gpujoin advise``, ``demo``, ``doctor`` and ``version``."""

from gpujoin.cli.main import main

__all__ = ["main"]
