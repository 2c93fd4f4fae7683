"""Mutation of CUDA kernels: what the tests say of kernels that are broken on purpose."""
