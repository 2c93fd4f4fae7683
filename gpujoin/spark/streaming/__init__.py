"""Joins of streams, with one another and with tables, in Spark's micro-batches.

===============  ======================================================================================================
``planning``     decides for a run of a stream, and puts the join into the plan of each micro-batch
``reading``      Spark's join as :class:`~gpujoin.model.streams.StreamJoin`
``explained``    what is decided, for ``gpujoin.explain``
``checkpoints``  what a checkpoint says of who has written its state
``worker``       what Python workers do: split rows by key, join a partition with its state, unpack rows
``hostchunks``   chunks of states that the workers of an executor share
``tables``       joins of a stream with tables, planned as ordinary queries are
===============  ======================================================================================================

An example, ``ads JOIN clicks``, in each micro-batch::

    Spark     new ads                    new clicks
    worker    SplitRows: blobs by key    SplitRows: blobs by key        and an empty blob for every partition
    Spark     exchange by partition, state store of the partition
    worker    PartitionJoin: SymmetricJoin over the state's chunks      gives blobs
    worker    UnpackRows: rows
"""
