"""Relational nodes over frames that stay on the device.

Only :mod:`.library` calls pylibcudf. The other modules use an array module and the protocol :class:`.columns.Columns`,
so the code that runs on a device with CuPy is tested with NumPy and PyArrow.
"""
