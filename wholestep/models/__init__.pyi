# What the package exports, and from where: the one list of it.  Type checkers read it as it is; `lazy.py` makes the
# package's names of it.  The order is that of docs/api/.
from wholestep.models.resnet import (
    CifarResNet as CifarResNet, ResNet as ResNet, resnet18 as resnet18, resnet20 as resnet20, resnet32 as resnet32,
    resnet34 as resnet34, resnet50 as resnet50, resnet56 as resnet56,
)
from wholestep.models.gpt2 import GPT2 as GPT2, gpt2 as gpt2
from wholestep.models.generation import LanguageModel as LanguageModel
from wholestep.models.llama_model import Llama as Llama, RotaryScaling as RotaryScaling, llama as llama
from wholestep.models.bert_model import Bert as Bert, bert as bert
from wholestep.models.vision_transformer import ViT as ViT, vit as vit
from wholestep.models.mobile_net import MobileNetV2 as MobileNetV2, mobilenet_v2 as mobilenet_v2
from wholestep.models.mobile_net_v3 import MobileNetV3 as MobileNetV3, mobilenet_v3 as mobilenet_v3
from wholestep.models.efficient_net import EfficientNet as EfficientNet, efficientnet as efficientnet
from wholestep.models.dense_net import DenseNet as DenseNet, densenet as densenet
from wholestep.models.conv_next import ConvNeXt as ConvNeXt, convnext as convnext
from wholestep.models.u_net import UNet as UNet, unet as unet
from wholestep.models.autoencoder import VAE as VAE, vae as vae
from wholestep.models.denoising import Diffusion as Diffusion, diffusion as diffusion, noise_loss as noise_loss
from wholestep.models.lstm import LSTMLanguageModel as LSTMLanguageModel, lstm_lm as lstm_lm
from wholestep.models.tabular import Tabular as Tabular
from wholestep.models.plain_convnets import LeNet5 as LeNet5, lenet5 as lenet5
from wholestep.models.plain_convnets import AlexNet as AlexNet, alexnet as alexnet
from wholestep.models.plain_convnets import VGG as VGG, vgg11 as vgg11, vgg13 as vgg13, vgg16 as vgg16, vgg19 as vgg19
