"""Benchmarks: `pytest --benchmark` runs them, and only them."""
