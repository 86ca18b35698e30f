"""The learner: packing, FSDP2, the optimiser step, checkpoints. No Ray.

`rti.learner.learner.Learner` is the whole; `rti.learner.checkpoint` is plain files and imports no torch.
"""
