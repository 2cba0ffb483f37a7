"""Bulk data: snapshots to read, SST files to build, the inbox of loads."""
