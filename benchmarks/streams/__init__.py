"""Joins of two streams in the engine alone, without Spark."""
