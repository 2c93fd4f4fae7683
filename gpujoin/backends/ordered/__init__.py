"""Searching by order instead of by equality: over an array module, for every backend."""
