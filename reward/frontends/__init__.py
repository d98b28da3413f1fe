"""Routes for other trainers' clients, on the same server and the same pools. One file a client; to add one, write such
a file and add its router to ROUTERS.

    sandbox_fusion   POST /run_code                 verl's `sandbox_fusion_url`, SkyRL, SandboxFusion's own client
    openrlhf         POST /openrlhf                 OpenRLHF's `--reward.remote_url`
    slime            POST /slime                    slime's and miles' `--rm-url`
    nemo_gym         POST /verify, /seed_session, /aggregate_metrics      a resources server of NeMo Gym

None of these protocols has a word for "not graded". Such a request waits here as long as its client does, and is then
answered with a status that the client does not take for a reward: 503 with Retry-After, on /run_code 504, which is the
only one that verl tries again. It goes on being graded meanwhile, and the client's next try gets its result. A reward
is never 0 because the service was busy, broken or stopped; what each client then does is in docs/other_trainers.md.
"""

from reward.frontends import nemo_gym, openrlhf, sandbox_fusion, slime

ROUTERS = (sandbox_fusion.router, openrlhf.router, slime.router, nemo_gym.router)
