"""What holds for all tests: nothing waits for a network that is not there."""

import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")      # tests import tau2 before rti.envs.tau2.official does
