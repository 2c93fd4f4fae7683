"""Expressions on the device: which are computed exactly as Spark does, and how, by family.

Fixed-width values are computed in CuPy, text by libcudf. In ANSI mode an operation that fails must raise only for rows
that Spark evaluates it for: the right side of ``AND`` not where the left is false, a branch of ``CASE`` only where it
is chosen, a right operand not where the left is null. So each node is given the mask of its *active* rows.
"""
