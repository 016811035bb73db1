"""How it is tested: draws, generator, runner, campaigns, findings and the command line."""
