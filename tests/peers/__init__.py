"""The oracle has oracles: independent implementations of the same pooling, wherever one can be installed."""
