"""Expressions over NumPy and Arrow arrays: the reference implementation, which covers what other evaluators lack.

:mod:`.evaluate` walks a tree. A module for each family of functions has the table from function to implementation.
"""
