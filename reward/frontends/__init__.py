"""Routes for other trainers' clients, on the same server and the same pools. To add one, write a file beside these and
add its router to ROUTERS.

    openrlhf   POST /openrlhf      OpenRLHF's `--reward.remote_url`
    slime      POST /slime         slime's and miles' `--rm-url`
    nemo_gym   POST /verify, /seed_session, /aggregate_metrics      a resources server of NeMo Gym

None of these protocols can say "not graded". Such a request waits here as long as its client does, and is then answered
with 503 and Retry-After, which the client does not take for a reward. Grading continues meanwhile, and the client's
next try gets the result. A reward is never 0 because the service was busy, broken or stopped. docs/other_trainers.md
says what each client then does.
"""

from reward.frontends import nemo_gym, openrlhf, slime

ROUTERS = (openrlhf.router, slime.router, nemo_gym.router)
