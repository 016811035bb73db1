"""The museum of real faults: each that was published or found, against a release that has it and one that hasn't."""
