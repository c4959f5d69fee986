"""Findings -> one self-contained HTML file. Draws what analyses say; computes no result."""
