"""Launchers of CUDA kernels: one module for each CUDA source file, and the compiler and device they use."""
