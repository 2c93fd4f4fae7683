"""The join core: probes a build side with rows and returns Arrow batches, or frames of a backend.

===============  ======================================================================================================
``layout``       what a join needs of each side; ``derive``: every join type from pairs and match marks
``build``        the searchable build side: by key, by order (``ranges``), by the nearest (``as_of``), by null patterns
                 (``not_in``)
``probe``        a morsel of probe rows and its states: candidates, pairs, rest; halved, or joined on the CPU, where
                 memory is short; ``rounds``: candidates of rows that only ask for a match
``sinks``        how rows come in and go out: as batches on the CPU, as frames on a device (``devicerows``);
                 ``output``: batches from gather maps
``passes``       all morsels of one side: on threads, with keys copied ahead, or no further than needed
                 (``early_stop``)
``spill``        a build side beyond the memory budget
``hash_join``    the public interface
===============  ======================================================================================================
"""
