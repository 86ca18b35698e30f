"""τ²-Bench (telecom, retail, airline) over the installed official package. Imports neither torch nor Ray."""
