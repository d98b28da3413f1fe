import pytest

from nemo_prorl.commands.parsing import CONF_DIR
from nemo_prorl.config.compose import compose
from nemo_prorl.config.makers import command_for, made_by


@pytest.mark.parametrize("name", ["laptop", "train"])
def test_every_file_that_a_configuration_names_has_a_command_that_makes_it(name: str) -> None:
    config = compose(name, [], conf_dir=CONF_DIR)
    for path in (config.model.path, *config.data.train, *config.data.validation):
        assert command_for(path), path


def test_nothing_is_claimed_of_files_that_nobody_knows() -> None:
    assert (command_for("mine/train.parquet"), made_by("mine/train.parquet")) == ("", "")
    assert command_for("data/mine/train.parquet") == ""
    assert made_by("data/eurus/train.parquet") == ", and `python -m nemo_prorl data build eurus` makes it"
