"""Spans in, figures and sentences out."""
