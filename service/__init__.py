"""The command line. Nothing else in the package knows of it."""
