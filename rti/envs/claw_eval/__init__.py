"""Claw-Eval: work in an office's software through tools. Our own task families, and the official tasks of a checkout."""
