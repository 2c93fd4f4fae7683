"""Relational nodes over tables that stay on the device.

All but :mod:`.library`, which calls pylibcudf, is written over an array module and :class:`.columns.Columns`, so the
very code that runs on a device with CuPy is tested with NumPy and PyArrow.
"""
