"""How fast poolers are, side by side: workloads, proof, interleaved rounds, limits and what the figures say."""
