"""Where it runs: devices by name, a simulated one, and what an audit notes on any of them.

The lowest layer: it knows tensors and nothing of pooling. The contracts above it ask it what shares
memory and how often the host waited, so neither they nor the oracle know on which device they look.
"""
