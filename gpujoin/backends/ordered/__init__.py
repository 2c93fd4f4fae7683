"""Search by order, and windows, written over an array module for every backend."""
