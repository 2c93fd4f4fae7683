"""Tails, types and statistics of ORC files."""
