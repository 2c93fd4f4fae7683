"""Expressions over NumPy and Arrow arrays: the reference of the backends, which covers what the others leave out.

:mod:`.evaluate` walks a tree; a module a family has the table from function to implementation.
"""
