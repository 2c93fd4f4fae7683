"""Six everyday programs: plain PySpark that is run by Spark alone and with gpujoin, with equal results.

Each module is a recipe: ``write`` makes its tables as Parquet files, ``run`` is the program, and its docstring
explains it. ``python -m benchmarks.recipes`` times them; ``docs/recipes.md`` is made from them.
"""
