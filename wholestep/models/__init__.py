"""Networks from the papers, in short files."""

from wholestep.models.gpt2 import GPT2, gpt2
from wholestep.models.lenet import LeNet5, lenet5
from wholestep.models.lstm import LSTMLanguageModel, lstm_lm
from wholestep.models.resnet import CifarResNet, ResNet, resnet18, resnet20, resnet32, resnet56

# fmt: off
__all__ = [
    "CifarResNet", "GPT2", "LSTMLanguageModel", "LeNet5", "ResNet",
    "gpt2", "lenet5", "lstm_lm", "resnet18", "resnet20", "resnet32", "resnet56",
]
