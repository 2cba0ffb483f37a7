"""Packages around an engine. Each stands alone; ``shared`` holds parts that several use."""
