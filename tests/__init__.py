"""Who tests the tester."""
