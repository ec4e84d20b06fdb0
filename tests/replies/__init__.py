"""Replies of models, from bytes to facts."""
