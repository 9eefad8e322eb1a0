"""A tagger of token sequences: embedding, bidirectional LSTM, one score per tag and token."""

from __future__ import annotations

from torch import Tensor, nn

TOKENS = 1000
_TAGS = 16
_WIDTH = 64


class LstmTagger(nn.Module):
    """Token numbers [batch, seq] to tag scores [batch, seq, tags]."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, _WIDTH)
        self.lstm = nn.LSTM(_WIDTH, _WIDTH, layers, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(2 * _WIDTH, _TAGS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of all tags at every token."""
        states, _ = self.lstm(self.embedding(tokens))
        scores: Tensor = self.tags(states)
        return scores
