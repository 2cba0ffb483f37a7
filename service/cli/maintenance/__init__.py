"""Commands for loads, resharding, repair, import and export, and segment files."""
