"""The command line: ``gpujoin demo``, ``gpujoin doctor``, ``gpujoin version``."""

from gpujoin.cli.main import main

__all__ = ["main"]
