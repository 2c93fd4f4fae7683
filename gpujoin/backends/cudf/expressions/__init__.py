"""Expressions on the device: which of them are computed exactly as in Spark, and how.

Fixed-width values are computed by CuPy, text by libcudf. In ANSI mode an operation may raise only for rows for which
Spark evaluates it: the right side of ``AND`` only where the left is not false, a branch of ``CASE`` only where it is
chosen, a right operand only where the left is not null. So each node gets the mask of its *active* rows.
"""
