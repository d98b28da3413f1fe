"""A judge: a trusted process that runs programs in a cell of its own fork server and compares their outputs.

A judge grades one submission at a time. It never evaluates anything from the submission: outputs are bytes, compared
with expected outputs that never leave this process.
"""

from __future__ import annotations

import socket
import sys
import traceback
from dataclasses import asdict

from reward import frames
from reward.graders.code.grader import grade
from reward.graders.grade import InvalidTask
from reward.sandbox.cell import Level
from reward.sandbox.execution import Sandbox
from reward.sandbox.launch import ZygoteError


def main(fd: int, level: str) -> None:
    """Serves one socket until it closes. It answers {"response", "task", "in_thought"?} with {"grade"},
    {"invalid": sentence}, {"retry": sentence} or {"failed": sentence}.

    An unexpected exception is a defect of this service. It is answered with {"failed"}, so the response is not graded:
    if it ended the judge, a trial (reward/trial.py) would blame the response."""
    connection = socket.socket(fileno=fd)
    sandbox = Sandbox(Level(level))
    while (request := frames.read(connection.fileno())) is not None:
        try:
            graded = grade(
                sandbox,
                request["response"],
                request["task"],
                in_thought=request.get("in_thought", False),
            )
            answer = {"grade": asdict(graded)}
        except InvalidTask as error:
            answer = {"invalid": str(error)}
        except ZygoteError as error:
            answer = {"retry": str(error)}
        except Exception as error:
            traceback.print_exc()
            answer = {"failed": f"the judge has a defect: {type(error).__name__}"}
        frames.write(connection.fileno(), answer)
    sandbox.close()
    sys.exit(0)
