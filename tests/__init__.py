"""The tests, one file for each module."""
