"""Checks that need a GPU (marker `gpu`), for whoever has one: scripts/gpu_check.sh runs them."""
