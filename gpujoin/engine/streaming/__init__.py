"""Joins of two streams: rows are joined as they come, and kept until no row that may still come can match them.

=============  ========================================================================================================
``chunks``     what is saved: immutable chunks of rows, marks beside them, and a manifest that names them
``state``      the state of one micro-batch: live rows of chunks, marks, eviction, merging
``symmetric``  the join: drops late rows, joins new rows with the state and each other, evicts
=============  ========================================================================================================

``gpujoin.plan.streams`` decides beforehand which rows are late and when rows go.
"""
