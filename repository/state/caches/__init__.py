"""Memory of rows and keys beside the stores: bounded, derived, and never wrong for being absent."""
