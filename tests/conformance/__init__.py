"""Whole paths through real servers."""
