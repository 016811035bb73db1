"""What is tested: the built-in poolers, and adapters to others."""
