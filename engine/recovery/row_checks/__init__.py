"""Rows held against each other: payloads outside the tree, workflows, first keys."""
