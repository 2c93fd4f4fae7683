"""Stand-ins for CuPy, pylibcudf and RMM, under which the modules that need a device run on the host.

Arrays are those of the kernels' emulator, which mix with no host array, and launches go to it. Columns lie in memory
that is overwritten when the last object that owns it is gone, so that a view which does not keep its owner reads
nonsense. Rows are copied to the device when their thread waits for its stream or goes on to use it, so a thread that
uses what another one has not waited for reads nonsense too. Each call is written down, with its stream; so is each copy
to and from the host.

What this does not prove: that libcudf computes what its stand-in computes; that work on a stream is ordered; anything
of time, of the driver and of memory in short supply. CUDA's own run time, which is linked into the three libraries,
does not run on a stand-in for the driver: it has the driver prove that it is NVIDIA's, and says
``cudaErrorSoftwareValidityNotEstablished`` to any other.
"""
