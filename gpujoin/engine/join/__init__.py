"""The join core: probes a build side with rows and returns Arrow batches, or frames of a backend.

===============  ======================================================================================================
``layout``       what a join needs of each side; ``derive``: every join type from pairs and match marks
``build``        the searchable build side: by key, by order (``ranges``), by the nearest (``as_of``), by null patterns
                 (``not_in``)
``probe``        candidates of probe rows, residual condition, marks, pairs, and the rest of either side
``sinks``        how rows come in and go out: Arrow or frames; ``output``: batches from gather maps
``early_stop``   candidates and rows that are skipped, since a match is known already
``spill``        a build side beyond the memory budget
``hash_join``    the public interface
===============  ======================================================================================================
"""
