"""What the server of tests.engines.conftest imports before it forks: all that takes a rank its first ten seconds."""

from __future__ import annotations

from nemo_prorl.engines import environment

environment.prepare()  # before torch and vLLM are imported

import nemo_prorl.engines.megatron.policy  # noqa: E402
import nemo_prorl.engines.vllm.sampler  # noqa: E402
import nemo_prorl.run  # noqa: E402, F401
