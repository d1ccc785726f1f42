"""The model that `mlflow.pyfunc.load_model` wraps and `mlflow models serve` serves."""

from typing import Any

import pandas as pd
from mlflow.exceptions import MlflowException

from recor_dist.answers.answering import Answering, plain_answers
from recor_dist.core.setting import Mistake

BATCH = 256  # prompts of a request that are answered together


class PackagedModel:
    """Answers a table of prompts."""

    def __init__(self, solver: Answering) -> None:
        self.solver = solver

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Answers in the order of the prompts. An error names the row of the bad prompt, counted from 1."""
        try:
            decoder = self.solver.choose((params or {}).get("decoder"))
            # MLflow turns {"prompt": ["...", "..."]} into one row
            texts = list(model_input.explode("prompt")["prompt"])
            prompts = self.solver.encode(texts, lambda index: f"the prompt in row {index + 1}")
        except Mistake as mistake:
            raise MlflowException.invalid_parameter_value(str(mistake)) from None  # the server replies with 400
        answers = [
            answer
            for generation in self.solver.answer_all(prompts, decoder, BATCH)
            for answer in plain_answers(self.solver, generation)
        ]
        return pd.DataFrame(answers, columns=["response", "order", "steps", "confidences"])
