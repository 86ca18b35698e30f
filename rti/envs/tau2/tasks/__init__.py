"""Training tasks of τ²-Bench: published ones, telecom's full set, and ones made here over the official databases."""
