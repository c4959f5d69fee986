"""Synthetic tasks, one file each; the file is its own registration."""
