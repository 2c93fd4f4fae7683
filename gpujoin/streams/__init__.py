"""Joins of streams, with one another and with tables.

New rows are joined as they come, and kept until no row that may still come can match them. These modules know nothing
of Spark:

================  =====================================================================================================
``join``          what is joined, and which columns are event times under a watermark
``plan``          which rows are late, which state may go, and what is tested when
``format``        what is saved: immutable chunks of rows, marks beside them, and a manifest that names them
``state``         the state of one micro-batch: live rows of chunks, marks, eviction, merging
``symmetric``     the join: drops late rows, joins new rows with the state and each other, evicts
================  =====================================================================================================

These run it in Spark's micro-batches:

================  =====================================================================================================
``reading``       Spark's join as :class:`~gpujoin.streams.join.StreamJoin`
``microbatches``  decides for a run of a stream, and puts the join into the plan of each micro-batch
``worker``        what Python workers do: split rows by key, join a partition with its state, unpack rows
``store``         where the chunks of a state are: Spark's state store, files of an executor, memory of a worker
``tables``        joins of a stream with tables, planned as ordinary queries are
================  =====================================================================================================

An example, ``ads JOIN clicks``, in each micro-batch::

    Spark     new ads                    new clicks
    worker    SplitRows: blobs by key    SplitRows: blobs by key        and an empty blob for every partition
    Spark     exchange by partition, state store of the partition
    worker    PartitionJoin: SymmetricJoin over the state's chunks      gives blobs
    worker    UnpackRows: rows
"""
