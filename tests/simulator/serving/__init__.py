"""Tests of the simulated servers."""
