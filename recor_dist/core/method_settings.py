"""The settings of each method. What a method does with them is in the table of `recor_dist/methods.py`."""

from dataclasses import dataclass, replace
from typing import Self

from omegaconf import MISSING

from recor_dist.core.setting import Mistake, setting

STAGES = 8  # J: states per row of method.masking=progressive


@dataclass
class MethodConfig:
    """What every method has."""

    name: str = setting(MISSING, "the method")

    def check(self) -> None:
        """Raises Mistake if these settings are incompatible."""

    def needs_order(self) -> bool:
        """True if it learns from the known order of the rows."""
        return False

    def states(self) -> int:
        """States per row in a batch, each of which costs a pass over prompt and answer."""
        return 1

    def at(self, step: int, steps: int) -> Self:
        """The settings at a step (from 0) of a run of `steps` steps, if some of them change over the run."""
        return self


@dataclass
class RecorConfig(MethodConfig):
    """Reinforced Context Order Recovery."""

    name: str = setting("recor", "the method", choices=("recor",))
    token_queries: int = setting(1, "K: slots queried per step", at_least=1)
    order_queries: int = setting(0, "C: learned order queries; 0 reads Q from the main stream", at_least=0)
    exploration: str = setting(
        "uniform",
        "how the K slots are drawn: uniformly, from the policy, or its K best",
        choices=("uniform", "entropy", "topk"),
    )
    include_greedy: bool = setting(False, "also query the slot that the policy fills, as query K+1")
    reward: str = setting("sparse", "1[p(y) >= eta], or log p(y)", choices=("sparse", "dense"))
    eta: float = setting(0.8, "minimum probability for a token to count as predicted", above=0, below=1)
    algorithm: str = setting("sql_bce", "how the order policy learns", choices=("sql_bce", "sql_mse", "ppo"))
    alpha: float = setting(0.1, "entropy coefficient of the policy softmax(Q/alpha)", at_least=0)
    gamma: float = setting(0.0, "discount factor; 0 considers the next token only", at_least=0, at_most=1)
    focal: float = setting(0.0, "exponent of the focal factor |label - p| of the BCE; 0, or at least 1", at_least=0)
    lm_weight: float = setting(1.0, "weight of the token loss", at_least=0)
    order_weight: float = setting(1.0, "weight of the order loss", at_least=0)
    random_contexts: float = setting(
        0.0,
        "share of the rows whose slots are filled in a random order in rollouts, instead of the policy's",
        at_least=0,
        at_most=1,
        newer=True,
    )
    random_contexts_end: float | None = setting(
        None,
        "random_contexts at the last step, which it approaches linearly; null keeps it constant",
        at_least=0,
        at_most=1,
        newer=True,
    )

    def at(self, step: int, steps: int) -> Self:
        if self.random_contexts_end is None:
            return self
        progress = step / max(1, steps - 1)
        share = self.random_contexts + progress * (self.random_contexts_end - self.random_contexts)
        return replace(self, random_contexts=share, random_contexts_end=None)

    def check(self) -> None:
        self._check_algorithm()
        # The policy of `ppo` is softmax(z): alpha only weights its entropy.
        if self.exploration == "entropy" and self.algorithm != "ppo" and self.alpha < 1e-6:
            raise Mistake(
                f"method.alpha={self.alpha}: exploration=entropy divides by alpha; use at least 1e-6, "
                "or exploration=topk"
            )
        if 0 < self.alpha < 1e-6:
            raise Mistake(f"method.alpha={self.alpha}: Q/alpha overflows; allowed: 0, or at least 1e-6")
        if self.lm_weight == 0 and self.order_weight == 0:
            raise Mistake("method.lm_weight=0: with method.order_weight=0, nothing would be learned; raise one of them")

    def _check_algorithm(self) -> None:
        if self.reward == "sparse" and self.algorithm != "sql_bce":
            raise Mistake(
                f"method.reward=sparse: method.algorithm={self.algorithm} would take log 0; "
                "use method.reward=dense or method.algorithm=sql_bce"
            )
        if self.focal and self.algorithm != "sql_bce":
            raise Mistake(
                f"method.focal={self.focal}: only method.algorithm=sql_bce has a focal factor; allowed here: 0"
            )
        if 0 < self.focal < 1:
            raise Mistake(f"method.focal={self.focal}: its slope is infinite at 0; allowed: 0, or at least 1")
        if self.gamma and self.algorithm == "ppo":
            raise Mistake(f"method.gamma={self.gamma}: method.algorithm=ppo considers the next token only; allowed: 0")


@dataclass
class ClmConfig(MethodConfig):
    """Causal language model: left to right."""

    name: str = setting("clm", "the method", choices=("clm",))


@dataclass
class ArGtConfig(MethodConfig):
    """Autoregression in the ground-truth order, which the order head imitates."""

    name: str = setting("ar_gt", "the method", choices=("ar_gt",))
    order_queries: int = setting(0, "C: learned order queries; 0 reads the order from the main stream", at_least=0)
    order_weight: float = setting(1.0, "weight of the order loss; the token loss has weight 1", above=0)

    def needs_order(self) -> bool:
        return True


@dataclass
class AoArmConfig(MethodConfig):
    """Any-order autoregression: all orders are equally likely."""

    name: str = setting("ao_arm", "the method", choices=("ao_arm",))


@dataclass
class MdmConfig(MethodConfig):
    """Masked diffusion; one run is evaluated with every decoder."""

    name: str = setting("mdm", "the method", choices=("mdm",))
    suffix: bool = setting(False, "SufMDM: leave a suffix of random length unmasked in training")
    masking: str = setting(
        "independent",
        "progressive: train on states that decoding passes through, eight per row, in which the most certain slots are "
        "revealed first; costs as much as eleven rows with independent masks",
        choices=("independent", "progressive"),
        newer=True,
    )
    diffusion_steps: int = setting(
        20, "T in training: slots are masked with probability 1/T, 2/T .. 1; not with masking=progressive", at_least=1
    )
    steps: int = setting(20, "T in decoding: forward passes per answer", at_least=1)
    decoder: str = setting(
        "top_prob",
        "the decoder for validation and the headline metrics",
        choices=("vanilla", "top_prob", "top_margin"),
    )
    rewrite: bool = setting(False, "adaptive decoders may change or re-mask tokens they have written")
    time_weight: str = setting(
        "linear",
        "weight of a row masked at time t: T-t, 1/(t+1), or 1; not with masking=progressive",
        choices=("linear", "original", "none"),
    )
    reweight_tokens: bool = setting(
        True, "weight a token's loss l by alpha (1 - exp(-l))^gamma, which favors hard tokens"
    )
    alpha: float = setting(0.25, "factor of the token weights", above=0)
    gamma: float = setting(1.0, "exponent of the token weights; 0, or at least 1", at_least=0)

    def states(self) -> int:
        return STAGES if self.masking == "progressive" else 1

    def check(self) -> None:
        if self.reweight_tokens and 0 < self.gamma < 1:
            raise Mistake(f"method.gamma={self.gamma}: its slope is infinite at 0; allowed: 0, or at least 1")
        if self.masking == "progressive":
            self._check_progressive()

    def _check_progressive(self) -> None:
        if self.suffix:
            raise Mistake(
                "method.suffix=true: reveals a random suffix, and method.masking=progressive the states that decoding "
                "passes through; omit one of them"
            )
        for name in ("diffusion_steps", "time_weight"):
            if (value := getattr(self, name)) != getattr(MdmConfig, name):
                raise Mistake(f"method.{name}={value}: method.masking=progressive draws no time t; omit one of them")
