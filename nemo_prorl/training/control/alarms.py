"""The checks of the report as a run goes: a warning is said in the training log when it comes, and when it has passed.

What has been said follows from the records alone, so a resumed run, which reads the records up to its checkpoint first,
does not say it again. An alarm never stops a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemo_prorl.config import RunConfig
from nemo_prorl.config.compose import to_dict
from nemo_prorl.run_folder.resolved import flatten
from nemo_prorl.training.control.checks import RECENT, Followed

PATIENCE = 3
"""Steps in a row with the same warning before it is said, because one step alone may be an exception (our choice)."""
CALM = RECENT
"""Steps in a row without the warning after which it has passed; until then it is not said again (our choice)."""


class Alarms:
    """Follows one stage, record by record."""

    def __init__(self, config: RunConfig) -> None:
        self._followed = Followed(config.stage.name, dict(flatten(to_dict(config))))
        self._num_bad: dict[str, int] = {}
        """Title of a check -> steps in a row for which it has warned."""
        self._num_calm: dict[str, int] = {}
        """Title of an alarm that was said and has not passed -> steps in a row without it."""
        self._failed = False

    def observe(self, record: Mapping[str, Any]) -> list[str]:
        """Returns what to say after `record` of metrics.jsonl, usually nothing."""
        if self._failed:
            return []
        try:
            return self._observe(record)
        except Exception as error:  # to watch a run is worth less than the run
            self._failed = True
            return [
                f"the checks cannot judge the record of step {record.get('step')} ({type(error).__name__}: {error}): "
                "no more alarms until the run is started again"
            ]

    def _observe(self, record: Mapping[str, Any]) -> list[str]:
        self._followed.observe(record)
        if "reward/mean" not in record:
            return []
        said = []
        for finding in self._followed.findings():
            title, step = finding.title, record["step"]
            self._num_bad[title] = 0 if finding.is_fine else self._num_bad.get(title, 0) + 1
            if title in self._num_calm:
                self._num_calm[title] = self._num_calm[title] + 1 if finding.is_fine else 0
                if self._num_calm[title] == CALM:
                    del self._num_calm[title]
                    said.append(f"passed after step {step}: {title}: {finding.text}")
            elif self._num_bad[title] == PATIENCE:
                self._num_calm[title] = 0
                said.append(f"alarm after step {step}: {title}: {finding.text}")
        return said
