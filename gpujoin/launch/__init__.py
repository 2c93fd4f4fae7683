"""Launchers of CUDA kernels: one module for each CUDA source file, and the compiler and device they use.

A launcher takes the device that runs its kernels and holds the arrays, checks its arguments, computes and allocates the
output, and launches. Every one raises :class:`~gpujoin.errors.KernelArgumentError` for arrays that are not as it
describes or have too many rows, :class:`~gpujoin.errors.KernelCompileError` if a kernel does not compile, and
:class:`~gpujoin.errors.DeviceMemoryError` if its result does not fit.
"""
