"""Own kernels against cuDF on one GPU: ``python -m benchmarks.kernels --help``."""
