"""Read in both environments, before any test module: whatever the engines want from the environment is set first."""

import importlib.util

if importlib.util.find_spec("torch"):  # the trainer's environment; the service's has no torch
    from nemo_prorl.engines import environment

    environment.prepare()
