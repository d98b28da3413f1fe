"""Alarms: the training log gets a line when a warning of the report's checks lasts, and another when it has passed.

The lines follow from the records alone, so a resumed run, which reads the records up to its checkpoint first, does not
repeat them. An alarm never stops a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemo_prorl.config import RunConfig
from nemo_prorl.config.compose import to_dict
from nemo_prorl.run_folder.origin import flatten
from nemo_prorl.training.control.checks import RECENT, Followed

PATIENCE = 3
"""Consecutive steps with a warning before the log gets it, because one step may be an exception."""
AT_ONCE = frozenset({"Temperature"})
"""Checks that the log repeats after one step: the entropy of thousands of tokens is no exception."""
CALM = RECENT
"""Consecutive steps without a warning after which it has passed; until then the log does not repeat it."""


class Alarms:
    """The alarms of one stage, which `observe` follows record by record."""

    def __init__(self, config: RunConfig) -> None:
        self._followed = Followed(config.stage.name, dict(flatten(to_dict(config))))
        self._num_bad: dict[str, int] = {}
        """Title of a check -> number of steps, up to the newest, for which it has warned without a break."""
        self._num_calm: dict[str, int] = {}
        """Title of an alarm that has not passed -> number of steps, up to the newest, without its warning."""
        self._failed = False

    def observe(self, record: Mapping[str, Any]) -> list[str]:
        """Returns the lines to log after `record` of metrics.jsonl, usually none."""
        if self._failed:
            return []
        said = []
        try:
            self._followed.observe(record)
            if "reward/mean" not in record:
                return []
            for check in self._followed.checks():
                title, step = check.title, record["step"]
                self._num_bad[title] = 0 if check.is_fine else self._num_bad.get(title, 0) + 1
                if title in self._num_calm:
                    self._num_calm[title] = self._num_calm[title] + 1 if check.is_fine else 0
                    if self._num_calm[title] == CALM:
                        del self._num_calm[title]
                        said.append(f"passed after step {step}: {title}: {check.text}")
                elif self._num_bad[title] == (1 if title in AT_ONCE else PATIENCE):
                    self._num_calm[title] = 0
                    said.append(f"alarm after step {step}: {title}: {check.text}")
        except Exception as error:  # a defect in a check must not end the run
            self._failed = True
            return [
                f"the checks cannot judge the record of step {record.get('step')} ({type(error).__name__}: {error}): "
                "no more alarms until the run is started again"
            ]
        return said
