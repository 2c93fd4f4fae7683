"""Mutation of the package: whether the tests notice Python code that is broken on purpose."""
