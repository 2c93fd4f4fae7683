"""Window functions over an array module: rows are sorted once, then each function is computed for all rows at a time.

A backend gives the arguments of calls as arrays (:class:`.calls.Argument`) and takes numbers, or places from which
values are to be gathered (:mod:`.results`).
"""
