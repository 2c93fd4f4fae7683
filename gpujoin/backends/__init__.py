"""Backends: interchangeable ways to execute a join."""
