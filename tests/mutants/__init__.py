"""Mutation testing: small changes of good code, each of which somebody should notice."""
