"""Where it runs: devices by name, a simulated one, and what an audit notes on any of them."""
