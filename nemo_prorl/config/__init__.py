"""Every option with its type, default, documentation and range. Defaults are written nowhere else.

sections/ declares the options, a dataclass for each section; compose.py puts YAML files and overrides together; help.py
prints them. A choice is a StrEnum whose members are the words that users write.

YAML files in conf/ and the command line state only differences. Values marked "ProRL" are from the papers (arXiv
2507.12507 and 2505.24864); docs/prorl_runs.md lists what the papers leave open. The sections import only the standard
library, because the command line reads them before anything heavy is imported.
"""

from nemo_prorl.config.sections.algorithm import (
    Advantage,
    Aggregation,
    AlgorithmConfig,
    CorrectionLevel,
    CorrectionMode,
    EntropyBonus,
    KlEstimator,
    KlIn,
    Objective,
    RatioLevel,
)
from nemo_prorl.config.sections.checks import ConfigError, did_you_mean, one_line
from nemo_prorl.config.sections.controller import (
    ControllerAction,
    ControllerConfig,
    ControllerMode,
    ResetTo,
    WatchLimitsConfig,
    WatchPatienceConfig,
)
from nemo_prorl.config.sections.data import (
    BegunConfig,
    Credit,
    DataBuildConfig,
    DataConfig,
    DataMix,
    is_hub_name,
)
from nemo_prorl.config.sections.evaluation import EvaluationConfig, ValidationConfig
from nemo_prorl.config.sections.exp_manager import (
    BestMode,
    CheckpointCallbackParams,
    ExpManagerConfig,
    UseNemo,
)
from nemo_prorl.config.sections.model import (
    Fp8Recipe,
    LayerSpec,
    LoraConfig,
    LoraTargets,
    ModelConfig,
    Precision,
    Recompute,
)
from nemo_prorl.config.sections.reward import (
    FUNCTION_END_S,
    SERVICE,
    LengthPenaltyConfig,
    RewardConfig,
    ShapingConfig,
)
from nemo_prorl.config.sections.run import RunConfig, StageConfig, StartFrom
from nemo_prorl.config.sections.sampler import DynamicSamplingConfig, InformativeBy, SamplerConfig
from nemo_prorl.config.sections.trainer import Decay, Device, Optimizer, TrainerConfig
