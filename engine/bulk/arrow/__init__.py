"""Rows of every table as Arrow columns. Here, and only here, NumPy and pyarrow are known."""
