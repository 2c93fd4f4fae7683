"""An ordinary PySpark program, plain and by ``python -m gpujoin``."""
