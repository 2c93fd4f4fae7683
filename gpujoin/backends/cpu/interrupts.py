"""Imports Polars so that Ctrl-C still interrupts system calls, which Polars would have begin again.

Polars handles SIGINT itself once it is imported, and has system calls begin again after it (``SA_RESTART``). Python
then raises ``KeyboardInterrupt`` only when the call returns by itself: a program that waits for Spark's driver, in
``recv``, would be interrupted when its query has ended.
"""

from __future__ import annotations

import signal

import polars

__all__ = ["polars"]

# Polars' handler stays, and is called.
signal.siginterrupt(signal.SIGINT, True)
