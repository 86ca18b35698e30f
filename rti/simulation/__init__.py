"""The control plane under a simulated clock, with a seeded schedule of faults. `python -m rti.simulation --help`.

What runs is the code of production: Controller, Plan, Pool, Fleet, GroupMaker, EpisodeRunner, RemoteEngine, the clients with
their limits and revivals, ReplayBuffer over its journal, run directory and ledger. Simulated are the clock, the network, the
processes and what they compute.
"""
