"""A judge: a trusted process that runs programs in a cell of its own fork server and compares their outputs.

A judge grades one submission at a time. It never evaluates anything from the submission: outputs are bytes, compared
with expected outputs that never leave this process.
"""

from __future__ import annotations

import socket
import sys
import traceback

from reward import frames
from reward.answers import Failed, Invalid, Reply, Retry, Sent
from reward.graders.code.grader import grade
from reward.graders.grade import InvalidTask
from reward.sandbox.cell import Level
from reward.sandbox.execution import Sandbox
from reward.sandbox.launch import ZygoteError


def main(fd: int, level: str) -> None:
    """Serves one socket until it closes: answers {"response", "task", "in_thought"?} with a Reply of one answer.

    An unexpected exception is a defect of this service. It is answered with Failed, so the response is not graded."""
    connection = socket.socket(fileno=fd)
    sandbox = Sandbox(Level(level))
    while (request := frames.read(connection.fileno())) is not None:
        in_thought = request.get("in_thought", False)
        answer: Sent
        try:
            answer = grade(sandbox, request["response"], request["task"], in_thought=in_thought)
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
