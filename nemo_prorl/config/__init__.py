"""Every option with its type, default, documentation and range. Defaults are written nowhere else.

sections/NAME.py declares the options NAME.*; compose.py puts YAML files and overrides together; help.py prints them.

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
    ValidationMean,
    WatchLimitsConfig,
    WatchPatienceConfig,
)
from nemo_prorl.config.sections.data import DataConfig, DataMix, is_hub_name
from nemo_prorl.config.sections.data_build import Credit, DataBuildConfig
from nemo_prorl.config.sections.dynamic_sampling import DynamicSamplingConfig, InformativeBy
from nemo_prorl.config.sections.evaluation import EvaluationConfig
from nemo_prorl.config.sections.exp_manager import (
    BestMode,
    CheckpointCallbackParams,
    ExpManagerConfig,
    UseNemo,
)
from nemo_prorl.config.sections.lora import LoraConfig, LoraTargets
from nemo_prorl.config.sections.model import Fp8Recipe, LayerSpec, ModelConfig, Precision, Recompute
from nemo_prorl.config.sections.reward import FUNCTION_END_S, SERVICE, RewardConfig
from nemo_prorl.config.sections.run import RunConfig
from nemo_prorl.config.sections.sampler import SamplerConfig
from nemo_prorl.config.sections.shaping import LengthPenaltyConfig, ShapingConfig
from nemo_prorl.config.sections.stage import StageConfig, StartFrom
from nemo_prorl.config.sections.trainer import Decay, Device, TrainerConfig
from nemo_prorl.config.sections.validation import ValidationConfig
