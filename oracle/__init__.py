"""What is right: scenarios, the data contract, the reference and the contracts."""
