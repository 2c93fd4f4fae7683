"""The command line: ``gpujoin calibrate``, ``demo``, ``doctor`` and ``version``."""

from gpujoin.cli.main import main

__all__ = ["main"]
