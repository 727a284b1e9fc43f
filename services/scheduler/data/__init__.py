"""Rows to prompt with: sources, their seeded order, and the held-out split."""
