"""The enumerations of Transformer Engine 2.15's compiled extension, with its names and numbers."""

from __future__ import annotations

from enum import Enum
from typing import Any


class _Number(Enum):
    """As pybind11 makes enumerations: int() gives the number, but a member is no integer."""

    def __int__(self) -> int:
        return int(self.value)


def _numbered(name: str, members: str, prefix: str = "", first: int = 0) -> Any:
    """Returns an enumeration of the words of `members`; a "-" leaves its number out."""
    words = ((prefix + word, number) for number, word in enumerate(members.split(), first) if word != "-")
    return _Number(name, dict(words), module=__name__)


DType: Any = _numbered(
    "DType", "Byte - Int32 - Float32 Float16 BFloat16 Float8E4M3 Float8E5M2 - Float4E2M1", "k"
)
FP8FwdTensors = _numbered(
    "FP8FwdTensors",
    "GEMM1_INPUT GEMM1_WEIGHT GEMM1_OUTPUT GEMM2_INPUT GEMM2_WEIGHT GEMM2_OUTPUT "
    "GEMM3_INPUT GEMM3_WEIGHT GEMM3_OUTPUT",
)
FP8BwdTensors = _numbered("FP8BwdTensors", "OUTPUT1 INPUT1 OUTPUT2 INPUT2 OUTPUT3 INPUT3", prefix="GRAD_")
Float8BlockScaleTensorFormat = _numbered("Float8BlockScaleTensorFormat", "GEMM_READY COMPACT INVALID")
CommOverlapType = _numbered("CommOverlapType", "RS AG")
CommOverlapAlgo = _numbered(
    "CommOverlapAlgo",
    "BULK_OVERLAP_AG BULK_OVERLAP_RS SPLIT_PIPELINED_AG_P2P SPLIT_PIPELINED_RS SPLIT_PIPELINED_RS_P2P "
    "ATOMIC_GEMM_RS ATOMIC_GEMM_AG_P2P ATOMIC_GEMM_RS_P2P EXTERNAL_BULK_OVERLAP_AG",
)
NVTE_Bias_Type = _numbered("NVTE_Bias_Type", "NO_BIAS PRE_SCALE_BIAS POST_SCALE_BIAS ALIBI", "NVTE_")
NVTE_Softmax_Type = _numbered(
    "NVTE_Softmax_Type", "VANILLA_SOFTMAX OFF_BY_ONE_SOFTMAX LEARNABLE_SOFTMAX", "NVTE_"
)
NVTE_Mask_Type = _numbered(
    "NVTE_Mask_Type",
    "NO_MASK PADDING_MASK CAUSAL_MASK PADDING_CAUSAL_MASK CAUSAL_BOTTOM_RIGHT_MASK PADDING_CAUSAL_BOTTOM_RIGHT_MASK",
    "NVTE_",
)
NVTE_Fused_Attn_Backend = _numbered(
    "NVTE_Fused_Attn_Backend", "No_Backend F16_max512_seqlen F16_arbitrary_seqlen FP8", "NVTE_", first=-1
)
NVTE_QKV_Format = _numbered(
    "NVTE_QKV_Format",
    "SBHD BSHD THD BSHD_2SBHD SBHD_2BSHD THD_2BSHD THD_2SBHD BHSD QKV_Format_NOT_SET",
    "NVTE_",
)
NVTE_QKV_Layout = _numbered(
    "NVTE_QKV_Layout",
    "SB3HD SBH3D SBHD_SB2HD SBHD_SBH2D SBHD_SBHD_SBHD BS3HD BSH3D BSHD_BS2HD BSHD_BSH2D BSHD_BSHD_BSHD "
    "T3HD TH3D THD_T2HD THD_TH2D THD_THD_THD SBHD_BSHD_BSHD BSHD_SBHD_SBHD THD_BSHD_BSHD THD_SBHD_SBHD "
    "Paged_KV_BSHD_BSHD_BSHD Paged_KV_BSHD_SBHD_SBHD Paged_KV_SBHD_BSHD_BSHD Paged_KV_SBHD_SBHD_SBHD "
    "Paged_KV_THD_BSHD_BSHD Paged_KV_THD_SBHD_SBHD BHSD_BHSD_BHSD",
    "NVTE_",
)
