"""How a run ended, for people and for machines: each form is a function from a `Report` to text."""
