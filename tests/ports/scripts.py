"""Models of public scripts as their authors write them, for PyTorch: the same text is run with `torch` and with us.

Each text defines `Net`, `batch(rng)`, the arrays of a step by name, and `loss(net, ...)`; `trained(net)` where only a
part of it is.  Sizes are small, and what is
drawn at random is left out, so that losses can be compared.  The numbers in front are those of the list of scripts.
"""

from __future__ import annotations

SCRIPTS: dict[str, str] = {}

SCRIPTS["01 mnist"] = """
class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, 1)
        self.conv2 = nn.Conv2d(4, 6, 3, 1)
        self.dropout1 = nn.Dropout(0.0)
        self.dropout2 = nn.Dropout(0.0)
        self.fc1 = nn.Linear(96, 12)
        self.fc2 = nn.Linear(12, 10)

    def forward(self, x):
        x = self.conv1(x)
        x = F.relu(x)
        x = self.conv2(x)
        x = F.relu(x)
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = self.fc1(x)
        x = F.relu(x)
        x = self.dropout2(x)
        x = self.fc2(x)
        output = F.log_softmax(x, dim=1)
        return output


def batch(rng):
    return {"data": rng.normal(size=(5, 1, 12, 12)).astype("float32"), "target": rng.integers(0, 10, 5)}


def loss(model, data, target):
    output = model(data)
    return F.nll_loss(output, target)
"""

SCRIPTS["03 vae"] = """
class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()

        self.fc1 = nn.Linear(20, 12)
        self.fc21 = nn.Linear(12, 3)
        self.fc22 = nn.Linear(12, 3)
        self.fc3 = nn.Linear(3, 12)
        self.fc4 = nn.Linear(12, 20)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar, eps):
        std = torch.exp(0.5*logvar)
        return mu + eps*std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x, eps):
        mu, logvar = self.encode(x.view(-1, 20))
        z = self.reparameterize(mu, logvar, eps)
        return self.decode(z), mu, logvar


def batch(rng):
    return {"data": rng.uniform(size=(6, 4, 5)).astype("float32"), "eps": rng.normal(size=(6, 3)).astype("float32")}


def loss(model, data, eps):
    recon_x, mu, logvar = model(data, eps)
    BCE = F.binary_cross_entropy(recon_x, data.view(-1, 20), reduction='sum')
    # 0.5 * sum(1 + log(sigma^2) - mu^2 - sigma^2)
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD
"""

SCRIPTS["06 super_resolution"] = """
class Net(nn.Module):
    def __init__(self, upscale_factor=2):
        super(Net, self).__init__()

        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 6, (5, 5), (1, 1), (2, 2))
        self.conv2 = nn.Conv2d(6, 6, (3, 3), (1, 1), (1, 1))
        self.conv4 = nn.Conv2d(6, upscale_factor ** 2, (3, 3), (1, 1), (1, 1))
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)

        self._initialize_weights()

    def forward(self, x):
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x))
        x = self.pixel_shuffle(self.conv4(x))
        return x

    def _initialize_weights(self):
        init.orthogonal_(self.conv1.weight, init.calculate_gain('relu'))
        init.orthogonal_(self.conv2.weight, init.calculate_gain('relu'))
        init.orthogonal_(self.conv4.weight)


def batch(rng):
    shapes = {"input": (3, 1, 5, 6), "target": (3, 1, 10, 12)}
    return {name: rng.uniform(size=shape).astype("float32") for name, shape in shapes.items()}


def loss(model, input, target):
    criterion = nn.MSELoss()
    return criterion(model(input), target)
"""

SCRIPTS["07 dcgan, the discriminator's step"] = """
class Generator(nn.Module):
    def __init__(self, nz=3, ngf=2, nc=1):
        super(Generator, self).__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(     nz, ngf * 2, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2,      nc, 4, 2, 1, bias=False),
            nn.Tanh()
        )

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self, ndf=2, nc=1):
        super(Discriminator, self).__init__()
        self.main = nn.Sequential(
            nn.Conv2d(nc, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 3, 1, 1, bias=False),
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False),
            nn.Sigmoid()
        )

    def forward(self, input):
        output = self.main(input)
        return output.view(-1, 1).squeeze(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.netG, self.netD = Generator(), Discriminator()

    def forward(self, real, noise):
        output = self.netD(real)
        fake = self.netG(noise)
        return output, self.netD(fake.detach())


def batch(rng):
    shapes = {"real": (4, 1, 8, 8), "noise": (4, 3, 1, 1)}
    return {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}


def trained(model):
    return model.netD


def loss(model, real, noise):
    criterion = nn.BCELoss()
    of_real, of_fake = model(real, noise)
    return criterion(of_real, torch.ones_like(of_real)) + criterion(of_fake, torch.zeros_like(of_fake))
"""

SCRIPTS["08 siamese_network"] = """
class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 3, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(3),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
        )
        self.fc_in_features = 3
        self.fc = nn.Sequential(
            nn.Linear(self.fc_in_features * 2, 8),
            nn.ReLU(inplace=True),
            nn.Linear(8, 1),
        )

        self.sigmoid = nn.Sigmoid()

    def forward_once(self, x):
        output = self.features(x)
        output = output.view(output.size()[0], -1)
        return output

    def forward(self, input1, input2):
        # get two images' features
        output1 = self.forward_once(input1)
        output2 = self.forward_once(input2)

        # concatenate both images' features
        output = torch.cat((output1, output2), 1)

        # pass the concatenation to the linear layers
        output = self.fc(output)

        # pass the out of the linear layers to sigmoid layer
        output = self.sigmoid(output)

        return output


def batch(rng):
    images = {name: rng.normal(size=(6, 1, 5, 5)).astype("float32") for name in ("images_1", "images_2")}
    return {**images, "targets": rng.integers(0, 2, 6).astype("float32")}


def loss(model, images_1, images_2, targets):
    criterion = nn.BCELoss()
    outputs = model(images_1, images_2).squeeze()
    return criterion(outputs, targets)
"""

SCRIPTS["13 word_language_model, LSTM"] = """
class Net(nn.Module):
    def __init__(self, ntoken=11, ninp=6, nhid=6, nlayers=2):
        super(Net, self).__init__()
        self.ntoken = ntoken
        self.drop = nn.Dropout(0.0)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, batch_first=True)
        self.decoder = nn.Linear(nhid, ntoken)
        self.decoder.weight = self.encoder.weight
        self.init_weights()

    def init_weights(self):
        initrange = 0.1
        nn.init.uniform_(self.encoder.weight, -initrange, initrange)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -initrange, initrange)

    def forward(self, input):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb)
        output = self.drop(output)
        decoded = self.decoder(output)
        decoded = decoded.view(-1, self.ntoken)
        return F.log_softmax(decoded, dim=1)


def batch(rng):
    return {"data": rng.integers(0, 11, (4, 5)), "targets": rng.integers(0, 11, (4, 5))}


def loss(model, data, targets):
    criterion = nn.NLLLoss()
    output = model(data)
    return criterion(output, targets.view(-1))
"""

SCRIPTS["15 nanoGPT"] = """
class CausalSelfAttention(nn.Module):

    def __init__(self, n_embd, n_head, bias):
        super().__init__()
        # key, query, value projections for all heads, but in a batch
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        # output projection
        self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.n_head = n_head
        self.n_embd = n_embd

    def forward(self, x):
        B, T, C = x.size() # batch size, sequence length, embedding dimensionality (n_embd)

        # calculate query, key, values for all heads in batch and move head forward to be the batch dim
        q, k, v  = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) # (B, nh, T, hs)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) # (B, nh, T, hs)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) # (B, nh, T, hs)

        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C) # re-assemble all head outputs side by side

        # output projection
        y = self.c_proj(y)
        return y


class MLP(nn.Module):

    def __init__(self, n_embd, bias):
        super().__init__()
        self.c_fc    = nn.Linear(n_embd, 4 * n_embd, bias=bias)
        self.gelu    = nn.GELU()
        self.c_proj  = nn.Linear(4 * n_embd, n_embd, bias=bias)

    def forward(self, x):
        x = self.c_fc(x)
        x = self.gelu(x)
        x = self.c_proj(x)
        return x


class Block(nn.Module):

    def __init__(self, n_embd, n_head, bias):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd, bias=bias)
        self.attn = CausalSelfAttention(n_embd, n_head, bias)
        self.ln_2 = nn.LayerNorm(n_embd, bias=bias)
        self.mlp = MLP(n_embd, bias)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class Net(nn.Module):

    def __init__(self, vocab_size=13, block_size=6, n_embd=8, n_head=2, n_layer=1, bias=False):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(
            wte = nn.Embedding(vocab_size, n_embd),
            wpe = nn.Embedding(block_size, n_embd),
            h = nn.ModuleList([Block(n_embd, n_head, bias) for _ in range(n_layer)]),
            ln_f = nn.LayerNorm(n_embd, bias=bias),
        ))
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight # https://paperswithcode.com/method/weight-tying

        # init all weights
        self.apply(self._init_weights)
        # apply special scaled init to the residual projections, per GPT-2 paper
        for pn, p in self.named_parameters():
            if pn.endswith('c_proj.weight'):
                torch.nn.init.normal_(p, mean=0.0, std=0.02/math.sqrt(2 * n_layer))

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx, targets):
        device = idx.device
        b, t = idx.size()
        pos = torch.arange(0, t, dtype=torch.long, device=device) # shape (t)

        # forward the GPT model itself
        tok_emb = self.transformer.wte(idx) # token embeddings of shape (b, t, n_embd)
        pos_emb = self.transformer.wpe(pos) # position embeddings of shape (t, n_embd)
        x = tok_emb + pos_emb
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)

        # if we are given some desired targets also calculate the loss
        logits = self.lm_head(x)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss


def batch(rng):
    return {"x": rng.integers(0, 13, (3, 6)), "y": rng.integers(0, 13, (3, 6))}


def loss(model, x, y):
    logits, loss = model(x, y)
    return loss
"""

SCRIPTS["19 U-Net"] = """
class DoubleConv(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.double_conv(x)


class Net(nn.Module):
    def __init__(self, n_channels=1, n_classes=3):
        super().__init__()
        self.inc = DoubleConv(n_channels, 2)
        self.down = nn.Sequential(nn.MaxPool2d(2), DoubleConv(2, 4))
        self.up = nn.ConvTranspose2d(4, 2, kernel_size=2, stride=2)
        self.conv = DoubleConv(4, 2)
        self.outc = nn.Conv2d(2, n_classes, kernel_size=1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down(x1)
        x = self.up(x2)
        x = torch.cat([x1, x], dim=1)
        x = self.conv(x)
        logits = self.outc(x)
        return logits


def batch(rng):
    return {"images": rng.normal(size=(2, 1, 8, 8)).astype("float32"), "true_masks": rng.integers(0, 3, (2, 8, 8))}


def loss(model, images, true_masks):
    criterion = nn.CrossEntropyLoss()
    masks_pred = model(images)
    return criterion(masks_pred, true_masks)
"""

SCRIPTS["21 metric_learning"] = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, anchors, positives):
        anchor_embeddings = F.normalize(self.embed(anchors), dim=-1)
        positive_embeddings = F.normalize(self.embed(positives), dim=-1)
        similarities = torch.einsum("ae,pe->ap", anchor_embeddings, positive_embeddings)
        temperature = 0.2
        return similarities / temperature


def batch(rng):
    return {name: rng.normal(size=(5, 10)).astype("float32") for name in ("anchors", "positives")}


def loss(model, anchors, positives):
    similarities = model(anchors, positives)
    sparse_labels = torch.arange(similarities.shape[0])
    return F.cross_entropy(similarities, sparse_labels)
"""

SCRIPTS["26 collaborative_filtering"] = """
class Net(nn.Module):
    def __init__(self, num_users=9, num_movies=20, embedding_size=4):
        super().__init__()
        self.user_embedding = nn.Embedding(num_users, embedding_size)
        self.user_bias = nn.Embedding(num_users, 1)
        self.movie_embedding = nn.Embedding(num_movies, embedding_size)
        self.movie_bias = nn.Embedding(num_movies, 1)

    def forward(self, inputs):
        user_vector = self.user_embedding(inputs[:, 0])
        user_bias = self.user_bias(inputs[:, 0])
        movie_vector = self.movie_embedding(inputs[:, 1])
        movie_bias = self.movie_bias(inputs[:, 1])
        dot_user_movie = (user_vector * movie_vector).sum(dim=1, keepdim=True)
        x = dot_user_movie + user_bias + movie_bias
        return torch.sigmoid(x)


def batch(rng):
    pairs = np.stack([rng.integers(0, 9, 12), rng.integers(0, 20, 12)], axis=1)
    return {"pairs": pairs, "ratings": rng.uniform(size=(12, 1)).astype("float32")}


def loss(model, pairs, ratings):
    return F.binary_cross_entropy(model(pairs), ratings)
"""

SCRIPTS["28 fast_neural_style"] = """
class ConvLayer(torch.nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride):
        super(ConvLayer, self).__init__()
        reflection_padding = kernel_size // 2
        self.reflection_pad = torch.nn.ReflectionPad2d(reflection_padding)
        self.conv2d = torch.nn.Conv2d(in_channels, out_channels, kernel_size, stride)

    def forward(self, x):
        out = self.reflection_pad(x)
        out = self.conv2d(out)
        return out


class ResidualBlock(torch.nn.Module):
    def __init__(self, channels):
        super(ResidualBlock, self).__init__()
        self.conv1 = ConvLayer(channels, channels, kernel_size=3, stride=1)
        self.in1 = torch.nn.InstanceNorm2d(channels, affine=True)
        self.relu = torch.nn.ReLU()

    def forward(self, x):
        residual = x
        out = self.relu(self.in1(self.conv1(x)))
        out = out + residual
        return out


class UpsampleConvLayer(torch.nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride, upsample=None):
        super(UpsampleConvLayer, self).__init__()
        self.upsample = upsample
        reflection_padding = kernel_size // 2
        self.reflection_pad = torch.nn.ReflectionPad2d(reflection_padding)
        self.conv2d = torch.nn.Conv2d(in_channels, out_channels, kernel_size, stride)

    def forward(self, x):
        x_in = x
        if self.upsample:
            x_in = torch.nn.functional.interpolate(x_in, mode='nearest', scale_factor=self.upsample)
        out = self.reflection_pad(x_in)
        out = self.conv2d(out)
        return out


class Net(torch.nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = ConvLayer(1, 3, kernel_size=3, stride=2)
        self.res1 = ResidualBlock(3)
        self.deconv1 = UpsampleConvLayer(3, 1, kernel_size=3, stride=1, upsample=2)

    def forward(self, X):
        y = self.conv1(X)
        y = self.res1(y)
        y = self.deconv1(y)
        return y


def batch(rng):
    return {name: rng.normal(size=(2, 1, 6, 6)).astype("float32") for name in ("x", "style")}


def gram_matrix(y):
    (b, ch, h, w) = y.size()
    features = y.view(b, ch, w * h)
    features_t = features.transpose(1, 2)
    gram = features.bmm(features_t) / (ch * h * w)
    return gram


def loss(model, x, style):
    mse_loss = torch.nn.MSELoss()
    y = model(x)
    return mse_loss(y, x) + 10.0 * mse_loss(gram_matrix(y), gram_matrix(style))
"""

SCRIPTS["31 ppo's losses"] = """
def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(4, 8)),
            nn.Tanh(),
            layer_init(nn.Linear(8, 1), std=1.0),
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(4, 8)),
            nn.Tanh(),
            layer_init(nn.Linear(8, 2), std=0.01),
        )

    def get_value(self, x):
        return self.critic(x)

    def forward(self, x, action):
        logits = F.log_softmax(self.actor(x), dim=-1)
        logprob = logits.gather(1, action.unsqueeze(-1)).squeeze(-1)
        entropy = -(logits.exp() * logits).sum(-1)
        return logprob, entropy, self.critic(x)


def batch(rng):
    names = "logprobs", "advantages", "returns", "values"
    numbers = {name: rng.normal(size=(6,)).astype("float32") for name in names}
    return {"obs": rng.normal(size=(6, 4)).astype("float32"), "actions": rng.integers(0, 2, 6), **numbers}


def loss(agent, obs, actions, logprobs, advantages, returns, values):
    clip_coef, ent_coef, vf_coef = 0.2, 0.01, 0.5
    newlogprob, entropy, newvalue = agent(obs, actions)
    logratio = newlogprob - logprobs
    ratio = logratio.exp()

    mb_advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

    # Policy loss
    pg_loss1 = -mb_advantages * ratio
    pg_loss2 = -mb_advantages * torch.clamp(ratio, 1 - clip_coef, 1 + clip_coef)
    pg_loss = torch.max(pg_loss1, pg_loss2).mean()

    # Value loss
    newvalue = newvalue.view(-1)
    v_loss_unclipped = (newvalue - returns) ** 2
    v_clipped = values + torch.clamp(
        newvalue - values,
        -clip_coef,
        clip_coef,
    )
    v_loss_clipped = (v_clipped - returns) ** 2
    v_loss_max = torch.max(v_loss_unclipped, v_loss_clipped)
    v_loss = 0.5 * v_loss_max.mean()

    entropy_loss = entropy.mean()
    return pg_loss - ent_coef * entropy_loss + v_loss * vf_coef
"""

SCRIPTS["32 TCN"] = """
class Chomp1d(nn.Module):
    def __init__(self, chomp_size):
        super(Chomp1d, self).__init__()
        self.chomp_size = chomp_size

    def forward(self, x):
        return x[:, :, :-self.chomp_size].contiguous()


class TemporalBlock(nn.Module):
    def __init__(self, n_inputs, n_outputs, kernel_size, stride, dilation, padding, dropout=0.0):
        super(TemporalBlock, self).__init__()
        self.conv1 = nn.Conv1d(n_inputs, n_outputs, kernel_size,
                               stride=stride, padding=padding, dilation=dilation)
        self.chomp1 = Chomp1d(padding)
        self.relu1 = nn.ReLU()
        self.dropout1 = nn.Dropout(dropout)

        self.net = nn.Sequential(self.conv1, self.chomp1, self.relu1, self.dropout1)
        self.downsample = nn.Conv1d(n_inputs, n_outputs, 1) if n_inputs != n_outputs else None
        self.relu = nn.ReLU()
        self.init_weights()

    def init_weights(self):
        self.conv1.weight.data.normal_(0, 0.01)
        if self.downsample is not None:
            self.downsample.weight.data.normal_(0, 0.01)

    def forward(self, x):
        out = self.net(x)
        res = x if self.downsample is None else self.downsample(x)
        return self.relu(out + res)


class Net(nn.Module):
    def __init__(self, num_inputs=2, num_channels=(3, 3), kernel_size=2, output_size=4):
        super(Net, self).__init__()
        layers = []
        num_levels = len(num_channels)
        for i in range(num_levels):
            dilation_size = 2 ** i
            in_channels = num_inputs if i == 0 else num_channels[i-1]
            out_channels = num_channels[i]
            layers += [TemporalBlock(in_channels, out_channels, kernel_size, stride=1, dilation=dilation_size,
                                     padding=(kernel_size-1) * dilation_size)]

        self.network = nn.Sequential(*layers)
        self.linear = nn.Linear(num_channels[-1], output_size)

    def forward(self, inputs):
        y1 = self.network(inputs)  # input should have dimension (N, C, L)
        o = self.linear(y1[:, :, -1])
        return F.log_softmax(o, dim=1)


def batch(rng):
    return {"data": rng.normal(size=(4, 2, 7)).astype("float32"), "target": rng.integers(0, 4, 4)}


def loss(model, data, target):
    return F.nll_loss(model(data), target)
"""
