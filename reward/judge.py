"""A judge: a trusted process that runs programs in a cell of its own fork server and compares their outputs.

A judge grades one submission at a time. It never evaluates anything from the submission: outputs are bytes, compared
with expected outputs that never leave this process.
"""

from __future__ import annotations

import socket
import sys
import traceback
from functools import partial

from reward import frames
from reward.answers import Failed, Invalid, Reply, Retry, Sent, to_known_answers
from reward.graders.code.grader import grade
from reward.graders.grade import InvalidTask
from reward.known_answers import KNOWN_ANSWERS
from reward.sandbox.cell import Level
from reward.sandbox.execution import Sandbox
from reward.sandbox.launch import ZygoteError


def main(fd: int, level: str) -> None:
    """Serves one socket until it closes: answers {"requests": [request]} with a Reply. The request is {"response",
    "task", "in_thought"} or {"known_answers"}.

    An unexpected exception is a defect of this service. It is answered with Failed, so the response is not graded."""
    connection = socket.socket(fileno=fd)
    sandbox = Sandbox(Level(level))
    while (message := frames.read(connection.fileno())) is not None:
        (request,) = message["requests"]
        answer: Sent
        try:
            if "known_answers" in request:
                answer = to_known_answers(KNOWN_ANSWERS["code"], partial(grade, sandbox))
            else:
                answer = grade(
                    sandbox, request["response"], request["task"], in_thought=request["in_thought"]
                )
        except InvalidTask as error:
            answer = Invalid(str(error))
        except ZygoteError as error:
            answer = Retry(str(error))
        except Exception as error:
            traceback.print_exc()
            answer = Failed(f"the judge has a defect: {type(error).__name__}")
        frames.write(connection.fileno(), Reply((answer,)).to_frame())
    sandbox.close()
    sys.exit(0)
